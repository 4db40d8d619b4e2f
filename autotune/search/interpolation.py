"""What the measured micro-batches of the fastest rung tell of those between them. Pure.

The largest that fits is not always the fastest: the last micro-step may train samples that the global batch has no use
for.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass

from autotune.candidate import Candidate
from autotune.outcome import Ok, StepTiming
from autotune.search.comparison import MARGIN
from autotune.search.context import SearchContext
from autotune.search.incumbent import RACED
from autotune.search.selection import Score, rank
from autotune.trial import History
from autotune.units import format_duration


@dataclass(frozen=True)
class Between:
    """A micro-batch that was not measured and is expected to be faster than the fastest one that was."""

    candidate: Candidate
    seconds: float
    """Of a whole global step, expected."""
    why: str


def faster_between(history: History, context: SearchContext) -> Between | None:
    """Return the micro-batch of the fastest rung that is expected to be faster than any measured, by more than MARGIN.

    Between two that were measured the seconds of a micro-step are taken for a straight line: a part that each takes
    whatever it holds, such as the transfer of offloaded weights, and one for each sample. All are smaller than one that
    fits, so they fit. None where no such micro-batch is faster, or the objective does not go by speed.
    """
    if context.goal.objective.name not in RACED:
        return None
    best = min(rank(history, context), key=lambda score: score.seconds, default=None)
    if best is None:
        return None
    rung, batches = best.trial.candidate.rung(), context.batches(best.trial.candidate)
    trials = [trial for trial in history if trial.candidate.rung() == rung]
    tried = {trial.candidate.micro_batch for trial in trials}
    trained = {
        trial.candidate.micro_batch: trial.outcome for trial in trials if isinstance(trial.outcome, Ok)
    }
    measured = {size: ok.timing for size, ok in trained.items() if ok.timing is not None}
    fitting = max(size for size, ok in trained.items() if context.fits(ok.memory))
    found = {
        size: _seconds(size, measured, batches.steps(size))
        for size in batches.useful
        if min(measured) < size < min(fitting, max(measured)) and size not in tried
    }
    size = min(found, key=lambda one: found[one], default=None)
    if size is None or found[size] > (1 - MARGIN) * best.seconds:
        return None
    return Between(rung.at(size), found[size], _why(size, found[size], batches.steps(size), best))


def _seconds(size: int, measured: dict[int, StepTiming], steps: int) -> float:
    """Return the seconds of a global step of `steps` micro-steps, between the two nearest that were measured."""
    sizes = sorted(measured)
    at = bisect(sizes, size)
    low, high = sizes[at - 1], sizes[at]
    share = (size - low) / (high - low)
    return (1 - share) * measured[low].global_step(steps) + share * measured[high].global_step(steps)


def _why(size: int, seconds: float, steps: int, best: Score) -> str:
    faster = 1 - seconds / best.seconds
    largest = f"{best.accumulation.steps} x {best.trial.candidate.micro_batch}"
    return (
        f"as micro-batches on either side of it go, {steps} x {size} samples take {format_duration(seconds)}, "
        f"{faster:.0%} less than {largest}"
    )
