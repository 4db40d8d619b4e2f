"""One verdict from those of all ranks. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.outcome import Crash, Lost, Ok, Oom, Outcome, Sample, StepEnergy, Timeout


@dataclass(frozen=True)
class RankOutcome:
    """What one rank's processes came to."""

    rank: int
    outcome: Outcome
    since: float = 0.0
    """The earliest moment at which it can have failed, in seconds of the machine's monotonic clock; of a Timeout
    the deadline itself. 0 where nobody saw it fail."""
    stopped: bool = False
    """It was ended because another rank had failed, so its own end says nothing."""


def join(ended: Sequence[RankOutcome], accumulation_steps: int) -> Outcome:
    """Return the verdict on a probe of several ranks, the same in whatever order they are given.

    It is Ok if all are: the memory is that of the rank with the largest peak, the timing that of the slowest at this
    accumulation, losses are means. Else the failure that explains the others stands, with its rank: memory first, for
    no peer's end refuses an allocation; then the one that began first, because a peer that is gone raises exceptions
    in the others, later; and where that cannot be told, a process that died before what ranks said of themselves. What
    began after a deadline explains nothing: ranks that are ended there raise exceptions in each other too.
    """
    in_order = sorted(ended, key=lambda entry: entry.rank)
    fine = [entry.outcome for entry in in_order if isinstance(entry.outcome, Ok)]
    if len(fine) == len(ended):
        return _together(fine, accumulation_steps)
    failed = [entry for entry in ended if not isinstance(entry.outcome, Ok)]
    # All are stopped where the tuner itself ended the probe.
    causes = [entry for entry in failed if not entry.stopped] or failed
    deadline = min((entry.since for entry in causes if isinstance(entry.outcome, Timeout)), default=math.inf)
    return _named(min((entry for entry in causes if entry.since <= deadline), key=_order))


def _order(entry: RankOutcome) -> tuple[bool, float, bool, int]:
    died = (
        entry.outcome.reason != "exception"
        if isinstance(entry.outcome, Crash)
        else isinstance(entry.outcome, Lost)
    )
    return not isinstance(entry.outcome, Oom), entry.since, not died, entry.rank


def _named(entry: RankOutcome) -> Outcome:
    match entry.outcome:
        case Oom(message=message) as oom:
            return oom.model_copy(update={"rank": entry.rank, "message": f"rank {entry.rank}: {message}"})
        case Crash(message=message) | Lost(message=message) as ended:
            return ended.model_copy(update={"message": f"rank {entry.rank}: {message}"})
        case other:
            return other


def _together(fine: Sequence[Ok], accumulation_steps: int) -> Ok:
    fullest = max(fine, key=lambda ok: ok.memory.peak())
    slowest = max(fine, key=lambda ok: _seconds(ok, accumulation_steps))
    retries = max(ok.memory.allocator_retries for ok in fine)
    evaluations = [ok.evaluation_loss for ok in fine if ok.evaluation_loss is not None]
    heard = [ok.communication for ok in fine if ok.communication is not None]
    checkpoints = [ok.checkpoint_bytes for ok in fine if ok.checkpoint_bytes is not None]
    return fullest.model_copy(
        update={
            "memory": fullest.memory.model_copy(
                update={
                    "allocator_retries": retries,
                    "by_rank": tuple(ok.memory.peak() for ok in fine) if len(fine) > 1 else (),
                }
            ),
            "timing": slowest.timing,
            "bound": slowest.bound,
            "step_seconds": slowest.step_seconds,
            "energy": _all_energy([ok.energy for ok in fine]),
            # Waiting for a rank that comes later is in the others' times.
            "communication": min(heard, key=lambda own: own.global_step(accumulation_steps), default=None)
            if len(heard) == len(fine)
            else None,
            "losses": tuple(
                statistics.fmean(losses) for losses in zip(*(ok.losses for ok in fine), strict=True)
            ),
            "evaluation_loss": statistics.fmean(evaluations) if evaluations else None,
            "checkpoint_bytes": max(checkpoints, default=None),
            "plain_peak": max((ok.plain_peak for ok in fine if ok.plain_peak is not None), default=None),
            # All ranks are loaded alike, and leave out the same.
            "stresses": tuple(
                max(same, key=lambda stress: stress.peak or 0)
                for same in zip(*(ok.stresses for ok in fine), strict=True)
            ),
        }
    )


def _seconds(ok: Ok, accumulation_steps: int) -> float:
    """Return the time of a rank's global step; where they ended early, which all do together, what it is at least."""
    if ok.bound is not None:
        return ok.bound.seconds
    assert ok.timing is not None
    return ok.timing.global_step(accumulation_steps)


def _all_energy(of: Sequence[StepEnergy | None]) -> StepEnergy | None:
    """Return the energy of all ranks: the sum of their GPUs', whose counters are as wrong together as each alone.

    Ranks on the processor read the same counters, of the whole machine: any of them says it. None where one lacks it.
    """
    known = [energy for energy in of if energy is not None]
    if len(known) < len(of):
        return None
    if known[0].counter == "rapl":
        return known[0]

    def added(samples: Sequence[Sample]) -> Sample:
        widths = [sample.half_width for sample in samples if sample.half_width is not None]
        return Sample(
            mean=math.fsum(sample.mean for sample in samples),
            half_width=math.fsum(widths) if len(widths) == len(samples) else None,
            count=min(sample.count for sample in samples),
        )

    return StepEnergy(
        counter=known[0].counter,
        micro_step=added([energy.micro_step for energy in known]),
        last_micro_step=added([energy.last_micro_step for energy in known]),
        optimizer_step=added([energy.optimizer_step for energy in known]),
    )
