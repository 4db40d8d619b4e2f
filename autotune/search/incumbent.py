"""What a probe has to beat, the best of a search so far; and what is known of the speed of one that did not. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.confidence import t_quantile
from autotune.outcome import Drift, Ok
from autotune.racing import Incumbent
from autotune.search.context import SearchContext
from autotune.search.drift import drift_of
from autotune.search.selection import score
from autotune.trial import History, Trial

RACED = frozenset({"speed", "cost"})
"""Objectives by which what is surely slower is surely worse; the others need its speed."""


def incumbent(history: History, context: SearchContext) -> Incumbent | None:
    """Return what a probe has to beat; None where nothing that fits was measured, or speed does not decide.

    It is the trial whose interval, drift included, ends first: nothing slower than that is the fastest.
    """
    if context.goal.objective.name not in RACED:
        return None
    drift = drift_of(history, (), context)
    fitting = [trial for trial in history if _is_measured(trial, context)]
    found = min(
        (score(trial, context, drift) for trial in fitting),
        key=lambda entry: entry.seconds + entry.half_width, default=None,
    )  # fmt: skip
    if found is None:
        return None
    outcome = found.trial.outcome
    assert isinstance(outcome, Ok)
    assert outcome.timing is not None
    count = outcome.timing.last_micro_step.count
    width = outcome.timing.interval(found.accumulation.steps) / found.seconds
    return Incumbent(
        seconds=found.seconds + found.half_width,
        # From the half-width of the mean's interval back to one step: too wide, if at all, where outliers are trimmed.
        deviation=width * math.sqrt(count) / t_quantile(count - 1),
        degrees=count - 1, drift=drift.share,
    )  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """What a trial's speed is no better than, at the target global batch."""

    micro_batch: int
    seconds: float
    """A whole global step takes at least so long."""
    tokens_per_second: float
    """At most, over all devices."""


def is_bounded(trial: Trial) -> bool:
    """Tell whether a trial trained, and ended before its speed was known."""
    return isinstance(trial.outcome, Ok) and trial.outcome.bound is not None


def bound_of(trial: Trial, context: SearchContext, drift: Drift | None = None) -> Bound | None:
    """Return what is known of a trial's speed that ended early; None where its speed was measured, or has none.

    With the run's `drift` it is what still holds; without, as it was recorded.
    """
    outcome = trial.outcome
    if not isinstance(outcome, Ok) or outcome.bound is None:
        return None
    seconds = outcome.bound.seconds if drift is None else outcome.bound.at_least(drift.share)
    tokens = context.batches(trial.candidate).accumulation(trial.candidate.micro_batch).effective
    return Bound(trial.candidate.micro_batch, seconds, tokens / seconds)


def _is_measured(trial: Trial, context: SearchContext) -> bool:
    """Tell whether a trial leaves the headroom free and its speed is known with an interval."""
    outcome = trial.outcome
    return (
        isinstance(outcome, Ok)
        and outcome.timing is not None
        and outcome.timing.last_micro_step.count > 1
        and context.fits(outcome.memory)
        and context.batches(trial.candidate).allows(trial.candidate.micro_batch)
    )
