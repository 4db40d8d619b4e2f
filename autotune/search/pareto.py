"""Memory against speed: what of a run no other beats in both. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.candidate import Candidate
from autotune.outcome import Drift, Ok
from autotune.prediction import Priced
from autotune.search.context import SearchContext
from autotune.search.incumbent import bound_of, is_bounded
from autotune.search.selection import score
from autotune.specs import Evidence
from autotune.trial import History


@dataclass(frozen=True)
class Point:
    """A configuration at the target global batch: what it takes, and how fast it is."""

    candidate: Candidate
    evidence: Evidence
    peak: int
    """Bytes of the fullest device that count against the budget."""
    low: int
    high: int
    """The 95% interval of `peak`; of a measured one the peak itself."""
    tokens_per_second: float | None
    """Over all devices; None where only memory is known."""
    interval: float
    """Half-width of the 95% interval of `tokens_per_second`."""
    seconds: float | None
    """Of a whole global step, by which speeds are compared: `tokens_per_second` counts tokens beyond the target too."""
    fits: bool
    """Whether it leaves the headroom free."""
    number: int | None = None
    """Of its trial; None where it was not probed."""
    at_most: float | None = None
    """Tokens per second that a trial is no faster than whose speed was not measured; None of all others."""


def measured_points(
    history: History, context: SearchContext, drift: Drift | None = None, evidence: Evidence = "measured"
) -> list[Point]:
    """Return every trial that trained, in order; on a simulated device the `evidence` of trials is no measurement."""
    found = []
    for trial in history:
        outcome = trial.outcome
        if not isinstance(outcome, Ok) or not context.batches(trial.candidate).allows(
            trial.candidate.micro_batch
        ):
            continue
        peak, fits = outcome.memory.peak(), context.fits(outcome.memory)
        if (bound := bound_of(trial, context, drift)) is not None:
            most = bound.tokens_per_second
            found.append(
                Point(trial.candidate, evidence, peak, peak, peak, None, 0.0, None, fits, trial.number, most)
            )
            continue
        rated = score(trial, context, drift)
        found.append(
            Point(
                trial.candidate, evidence, peak, peak, peak,
                rated.tokens_per_second, rated.interval, rated.seconds, fits, trial.number,
            )
        )  # fmt: skip
    return found


def predicted_points(priced: Iterable[Priced], context: SearchContext, history: History = ()) -> list[Point]:
    """Return what is predicted of configurations whose speed no trial of the history measured, in order."""
    tried = {trial.candidate for trial in history if not is_bounded(trial)}
    return [_predicted(entry, context) for entry in priced if entry.candidate not in tried]


def _predicted(entry: Priced, context: SearchContext) -> Point:
    speed, interval, seconds = None, 0.0, None
    batches, size = context.batches(entry.candidate), entry.candidate.micro_batch
    if entry.seconds is not None and batches.allows(size):
        seconds = entry.seconds
        speed = batches.accumulation(size).effective / entry.seconds
        interval = speed * (entry.half_width or 0.0) / entry.seconds
    fits = entry.peak <= context.usable
    return Point(
        entry.candidate, "predicted", entry.peak, entry.low, entry.high, speed, interval, seconds, fits
    )


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Return those that fit and that no other fitting one beats in both memory and speed, the smallest peak first.

    Peaks and speeds are compared as they stand. Of equals a trial stands for all, else the first.
    """
    timed = [
        (point.peak, point.seconds, point) for point in points if point.fits and point.seconds is not None
    ]
    timed.sort(key=lambda one: (one[0], one[1], one[2].number is None))
    front: list[Point] = []
    fastest = math.inf
    for _, seconds, point in timed:
        if seconds < fastest:
            front.append(point)
            fastest = seconds
    return front
