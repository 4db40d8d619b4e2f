"""What changes if a winner is changed by one step in one axis: as measured, as predicted, or not known. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.candidate import Candidate
from autotune.outcome import Ok
from autotune.search.context import SearchContext
from autotune.search.pareto import Point
from autotune.search.wording import detail, verdict
from autotune.specs import Evidence
from autotune.techniques.constraint import ANY
from autotune.techniques.families import UNORDERED
from autotune.trial import History

Known = Evidence | Literal["refused", "unknown"]


@dataclass(frozen=True)
class Neighbour:
    """A configuration one step away from another."""

    axis: str
    value: Any
    candidate: Candidate


@dataclass(frozen=True)
class NeighbourEffect:
    """What is known of a neighbour of the winner."""

    axis: str
    before: Any
    after: Any
    candidate: Candidate
    known: Known
    point: Point | None = None
    """Its memory and speed; None where it did not train, cannot run, or nothing is known of it."""
    why: str = ""
    """The verdict of one that did not train, or why it cannot run, or what is not known and why."""


def neighbours(winner: Candidate, context: SearchContext) -> Iterator[Neighbour]:
    """Yield the configurations one step away, the micro-batch first, then along each axis of the space.

    One step is to the next value of an axis on either side, in the space's own order; where values tell nothing of
    each other, to each of them, but for an attention that is the winner's by another name. The micro-batch steps to the
    next that is worth a probe.
    """
    batches = context.batches(winner)
    for size in (batches.up_to(0, winner.micro_batch - 1), batches.above(winner.micro_batch)):
        if size is not None:
            yield Neighbour("micro_batch", size, winner.at(size))
    for axis, listed in context.space.axes.items():
        values = _in_order(context.values(axis)) if ANY in listed else listed
        for value in _next_to(getattr(winner, axis), values, axis in UNORDERED):
            step = winner.model_copy(update={axis: value})
            if axis != "attention" or not context.stands_for_sdpa(step):
                yield Neighbour(axis, value, step)


def _in_order(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values of an axis that takes any number in the order of what they say: numbers, then all."""
    return tuple(sorted(values, key=lambda one: (type(one) is not int, one if type(one) is int else 0)))


def _next_to(value: Any, values: Sequence[Any], unordered: bool) -> Iterator[Any]:
    if value not in values:
        return
    at = values.index(value)
    for index, other in enumerate(values):
        if other != value and (unordered or abs(index - at) == 1):
            yield other


def sensitivity(
    winner: Candidate,
    context: SearchContext,
    history: History,
    points: Sequence[Point],
    untraced: Mapping[Candidate, str] | None = None,
    evidence: Evidence = "measured",
) -> list[NeighbourEffect]:
    """Return what is known of each neighbour; `points` are of all that trained or is predicted.

    `untraced` holds why a rung cannot be priced; `evidence` is what trials of this device are.
    """
    of = {point.candidate: point for point in reversed(points)}
    trials = {trial.candidate: trial for trial in history}
    changes = []
    for step in neighbours(winner, context):
        known: Known = "unknown"
        point, why, trial = of.get(step.candidate), "", trials.get(step.candidate)
        if trial is not None:
            known = evidence
            if not isinstance(trial.outcome, Ok):
                behind = detail(trial.outcome)
                why = verdict(trial.outcome, context) + (f": {behind}" if behind else "")
        elif (refusal := context.refusal(step.candidate)) is not None:
            known, point, why = "refused", None, refusal.reason
        elif point is not None:
            known = "predicted"
            why = "" if point.tokens_per_second is not None else "its speed is not predicted on this device"
        else:
            rung = step.candidate.rung()
            why = (untraced or {}).get(rung) or "neither probed nor priced"
        changes.append(
            NeighbourEffect(
                step.axis, getattr(winner, step.axis), step.value, step.candidate, known, point, why
            )
        )
    return changes
