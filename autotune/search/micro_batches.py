"""The micro-batches of one rung: which are worth a probe, and how each adds up to the global batch. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Set
from dataclasses import dataclass
from functools import cached_property

from autotune.accumulation import Accumulation, accumulate, is_balanced, largest_micro_batch
from autotune.bounds import MOST_SAMPLES
from autotune.errors import InputError

NONE: frozenset[int] = frozenset()


@dataclass(frozen=True)
class MicroBatches:
    """What a rung's rows and ranks make of the global batch. Micro-batches are in samples on each rank."""

    target: int
    """The global batch, in tokens that are not padding."""
    tokens_per_sample: int
    """Tokens that one row of a batch counts for."""
    ranks: int
    """Devices that take samples of their own."""
    exact: bool = False
    """Whether the global batch has to be met exactly."""

    @cached_property
    def limit(self) -> int:
        """The largest that the global batch has use for; 0 where it has use for none (`check` says why)."""
        try:
            return min(self._largest(), MOST_SAMPLES)
        except InputError:
            return 0

    def check(self) -> None:
        """Raise InputError where no micro-batch makes up the global batch."""
        self._largest()

    def _largest(self) -> int:
        return largest_micro_batch(self.target, self.tokens_per_sample, self.ranks, self.exact)

    @cached_property
    def useful(self) -> tuple[int, ...]:
        """Every one that is worth a probe, smallest first."""
        if self.exact:
            return tuple(size for size in range(1, self.limit + 1) if self.allows(size))
        sizes = [1]
        while (steps := self.steps(sizes[-1])) > 1:
            sizes.append(-(-self.target // ((steps - 1) * self._per_sample)))  # the smallest with fewer steps
        return tuple(sizes[: bisect_right(sizes, self.limit)])

    def between(self, low: int, wanted: int, high: int, without: Set[int] = NONE) -> int | None:
        """Return a useful one strictly between `low` and `high`, near `wanted`; None if there is none.

        It is none of `without`.
        """
        at_most = self.up_to(low, min(wanted, high - 1), without)
        return self._next(max(wanted, low), high - 1, without) if at_most is None else at_most

    def up_to(self, low: int, high: int, without: Set[int] = NONE) -> int | None:
        """Return the largest useful one above `low` and at most `high`, none of `without`; None if there is none."""
        for size in reversed(self.useful[: bisect_right(self.useful, high)]):
            if size <= low:
                return None
            if size not in without:
                return size
        return None

    def above(self, low: int) -> int | None:
        """Return the smallest useful one above `low`; None where the global batch has use for none."""
        return self._next(low, self.limit)

    def is_useful(self, micro_batch: int) -> bool:
        """Tell whether one is worth a probe: it divides the goal exactly, or is balanced."""
        if self.exact:
            return self.allows(micro_batch)
        return is_balanced(self.target, micro_batch, self.tokens_per_sample, self.ranks)

    def steps(self, micro_batch: int) -> int:
        """Return how many micro-steps of one make up the global batch, or just exceed it."""
        return max(1, -(-self.target // (micro_batch * self._per_sample)))

    def accumulation(self, micro_batch: int) -> Accumulation:
        """Return how one adds up to the global batch. Raises InputError where `exact` forbids it."""
        return accumulate(self.target, micro_batch, self.tokens_per_sample, self.ranks, exact=self.exact)

    def allows(self, micro_batch: int) -> bool:
        """Tell whether this micro-batch can make up the global batch."""
        return not self.exact or self.target % (micro_batch * self._per_sample) == 0

    @property
    def _per_sample(self) -> int:
        """Tokens that one sample on each rank counts for together."""
        return self.tokens_per_sample * self.ranks

    def _next(self, low: int, high: int, without: Set[int] = NONE) -> int | None:
        """Return the smallest useful one above `low` and at most `high`, none of `without`; None if there is none."""
        following = self.useful[bisect_right(self.useful, low) : bisect_right(self.useful, high)]
        return next((size for size in following if size not in without), None)
