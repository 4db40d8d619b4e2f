"""A covering array: few candidates that together hold every legal pair of values of two axes.

Greedy, and the same in every process: each candidate begins with the first pair that none has yet, and takes for every
other axis the value that brings most pairs. A value is taken where the values of all axes can still be chosen so that
nothing refuses the candidate; a pair that no such choice holds is no legal one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

from autotune.candidate import AXES, Candidate
from autotune.techniques.axis import Context
from autotune.techniques.check import RULES, check
from autotune.techniques.families import DECLARED

Values = dict[str, Any]
Pair = frozenset[tuple[str, Any]]
"""Two axes, each with its value."""

WHOLE = ("sharding", "tensor_parallel", "engine")
"""What the ranks of a context allow or do not allow together."""


def broken(chosen: Values) -> bool:
    """Tell whether values of some axes break a rule whatever the others are."""
    return any(
        one.axis in chosen
        and one.covers(chosen[one.axis])
        and any(chosen[axis] in values for axis, values in one.rule.forbid.items() if axis in chosen)
        and all(axis in chosen and chosen[axis] in values for axis, values in one.rule.where.items())
        for one in RULES
    )


@dataclass
class Covering:
    """The candidates for some axes in a context; what is left out has its default."""

    axes: Mapping[str, Sequence[Any]]
    context: Context
    candidates: list[Values] = field(default_factory=list)
    covered: set[Pair] = field(default_factory=set)
    illegal: list[Pair] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Know the defaults of the axes that are left out."""
        defaults = Candidate()
        self._others = {axis: getattr(defaults, axis) for axis in AXES if axis not in self.axes}

    def fill(self, known: frozenset[Pair] = frozenset()) -> Covering:
        """Make candidates until every legal pair is in one; pairs that are known need none."""
        self.covered |= known
        for pair in self.pairs():
            if pair in self.covered:
                continue
            whole = next(self._completed(dict(pair)), None)
            if whole is None:
                self.illegal.append(pair)
                continue
            self.candidates.append(whole)
            self.covered |= pairs_of(whole)
        return self

    def pairs(self) -> Iterator[Pair]:
        """Return all pairs of values, legal or not."""
        for (one, values), (other, others) in combinations(self.axes.items(), 2):
            for value, another in product(values, others):
                yield frozenset({(one, value), (other, another)})

    def _completed(self, chosen: Values) -> Iterator[Values]:
        if self._broken(chosen):
            return
        free = [axis for axis in self.axes if axis not in chosen]
        if not any(axis in WHOLE for axis in free) and self._misplaced(chosen):
            return
        if not free:
            if not check(Candidate(**chosen), self.context):
                yield chosen
            return
        left = {axis: self._left(chosen, axis) for axis in free}
        placing = [axis for axis in free if axis in WHOLE]
        axis = min(placing or free, key=lambda axis: len(left[axis]))
        if any(not values for values in left.values()):
            return
        for value in sorted(left[axis], key=lambda value: -self._gain(chosen, axis, value)):
            yield from self._completed({**chosen, axis: value})

    def _left(self, chosen: Values, axis: str) -> list[Any]:
        return [value for value in self.axes[axis] if not self._broken({**chosen, axis: value})]

    def _broken(self, chosen: Values) -> bool:
        return broken({**self._others, **chosen})

    def _misplaced(self, chosen: Values) -> bool:
        """Tell whether so many ranks cannot be what is chosen: that is seen early, or all else is tried in vain."""
        place = Candidate(**{axis: chosen[axis] for axis in WHOLE if axis in chosen})
        return any(
            look(place, self.context) for axis in DECLARED if axis.name in WHOLE for look in axis.checks
        )

    def _gain(self, chosen: Values, axis: str, value: Any) -> int:
        return sum(frozenset({(axis, value), item}) not in self.covered for item in chosen.items())


def pairs_of(values: Values) -> set[Pair]:
    return {frozenset(pair) for pair in combinations(values.items(), 2)}
