"""What TPE searches: the axes of a space with their values, the micro-batch, and where a candidate is among them."""

from __future__ import annotations

import math
from functools import cached_property
from itertools import product
from typing import Any

from autotune.candidate import OPEN, Candidate
from autotune.outcome import NonFinite, Ok, Oom, Unsupported
from autotune.search.context import SearchContext
from autotune.search.ladder import FALLBACKS
from autotune.search.tpe import Parameter, Places
from autotune.techniques.consent import leaves_alone
from autotune.trial import History

SIZE = "micro_batch"
"""The parameter that is no axis: where a micro-batch is between 1 and the largest useful one, as a share of octaves."""


class TpeAxes:
    """The axes of a context's space as far as history leaves them open; a pure function of both."""

    def __init__(self, history: History, context: SearchContext) -> None:
        self._history = history
        self._context = context

    @cached_property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """Return the values of each axis of the space that are searched: of fallbacks the one whose turn it is.

        What was allowed though it changes what is learned is no fallback, and is searched beside that.
        """
        return self._listed | {
            axis: (
                taken,
                *(value for value in self._listed[axis] if not leaves_alone(axis, value) and value != taken),
            )
            for axis, taken in self.fallbacks.items()
        }

    @cached_property
    def fallbacks(self) -> dict[str, Any]:
        """Return the values of the axes that change only where the device refuses what comes before."""
        axes = [axis for axis in FALLBACKS if axis in self._listed]
        usual = [
            tuple(value for value in self._listed[axis] if leaves_alone(axis, value)) or self._listed[axis]
            for axis in axes
        ]
        every = [dict(zip(axes, values, strict=True)) for values in product(*usual)]
        for values in every:
            outcomes = [
                trial.outcome
                for trial in self._history
                if all(getattr(trial.candidate, axis) == value for axis, value in values.items())
            ]
            refused = any(
                isinstance(outcome, NonFinite)
                or (isinstance(outcome, Unsupported) and outcome.axis in (None, *FALLBACKS))
                for outcome in outcomes
            )
            trains = any(isinstance(outcome, Ok | Oom) for outcome in outcomes)
            if self._context.is_open(self.plain(values)) and (trains or not refused):
                return values
        return every[0]

    def plain(self, fallbacks: dict[str, Any]) -> Candidate:
        """Return the base as far as the space has its values, and its first ones."""
        base = self._context.base.rung()
        others = {
            axis: values[0] for axis, values in self._listed.items() if getattr(base, axis) not in values
        }
        return base.model_copy(update=others | fallbacks)

    def is_in_turn(self, rung: Candidate) -> bool:
        """Tell whether a rung's fallbacks are those whose turn it is, or were allowed."""
        return all(getattr(rung, axis) in self.values[axis] for axis in self.fallbacks)

    def is_within(self, candidate: Candidate) -> bool:
        """Tell whether every value is one of the space's: where rules leave no other, the base's may not be."""
        return all(getattr(candidate, axis) in values for axis, values in self.values.items())

    def parameters(self) -> dict[str, Parameter]:
        """Return what TPE draws: the micro-batch, and each axis that has several values."""
        several = {axis: len(values) for axis, values in self.values.items() if len(values) > 1}
        return {SIZE: Parameter("share")} | {
            axis: Parameter("ordered" if axis in OPEN else "unordered", count)
            for axis, count in several.items()
        }

    def drawn(self, places: Places) -> dict[str, Any]:
        """Return the value of each axis at the places that were drawn; of what was not, the first."""
        return {axis: values[int(places.get(axis, 0))] for axis, values in self.values.items()}

    def places(self, candidate: Candidate) -> Places:
        """Return where in its values each axis of a candidate is, and its micro-batch."""
        places: Places = {
            axis: values.index(getattr(candidate, axis)) for axis, values in self.values.items()
        }
        return {**places, SIZE: self.share(candidate)}

    def share(self, candidate: Candidate) -> float:
        """Return where a micro-batch is between 1 and the largest useful one, in octaves: from 0 to 1."""
        limit = self._context.batches(candidate).limit
        return min(1.0, math.log(candidate.micro_batch) / math.log(limit)) if limit > 1 else 0.0

    @cached_property
    def _listed(self) -> dict[str, tuple[Any, ...]]:
        """Return the values of each axis of the space; of one that takes numbers these first, in order."""
        values = {axis: self._context.values(axis) for axis in self._context.space.axes}
        return {
            axis: tuple(sorted(those, key=lambda one: (type(one) is not int, one if type(one) is int else 0)))
            if axis in OPEN
            else those
            for axis, those in values.items()
        }
