"""The micro-batches of one rung: which are worth a probe, and how each adds up to the global batch. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

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

    @property
    def limit(self) -> int:
        """The largest that the global batch has use for, or any. Raises InputError where that is below 1."""
        useful = largest_micro_batch(self.target, self.tokens_per_sample, self.ranks, self.exact)
        return min(useful, MOST_SAMPLES)

    def useful(self) -> Iterator[int]:
        """Yield every one that is worth a probe, smallest first."""
        return (size for size in range(1, self.limit + 1) if self.is_useful(size))

    def between(self, low: int, wanted: int, high: int, without: Set[int] = NONE) -> int | None:
        """Return a useful one strictly between `low` and `high`, near `wanted`; None if there is none.

        It is none of `without`.
        """
        downwards = range(min(wanted, high - 1), low, -1)
        upwards = range(max(wanted, low) + 1, high)
        sizes = (size for size in (*downwards, *upwards) if size not in without)
        return next((size for size in sizes if self.is_useful(size)), None)

    def up_to(self, low: int, high: int, without: Set[int] = NONE) -> int | None:
        """Return the largest useful one above `low` and at most `high`, none of `without`; None if there is none."""
        sizes = (size for size in range(min(high, self.limit), low, -1) if size not in without)
        return next((size for size in sizes if self.is_useful(size)), None)

    def above(self, low: int) -> int | None:
        """Return the smallest useful one above `low`; None where the global batch has use for none."""
        return next((size for size in range(low + 1, self.limit + 1) if self.is_useful(size)), None)

    def is_useful(self, micro_batch: int) -> bool:
        """Tell whether one is worth a probe: it divides the goal exactly, or is balanced."""
        if self.exact:
            return self.allows(micro_batch)
        return is_balanced(self.target, micro_batch, self.tokens_per_sample, self.ranks)

    def accumulation(self, micro_batch: int) -> Accumulation:
        """Return how one adds up to the global batch. Raises InputError where `exact` forbids it."""
        return accumulate(self.target, micro_batch, self.tokens_per_sample, self.ranks, exact=self.exact)

    def allows(self, micro_batch: int) -> bool:
        """Tell whether this micro-batch can make up the global batch."""
        try:
            self.accumulation(micro_batch)
        except InputError:
            return False
        return True
