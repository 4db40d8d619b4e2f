"""One verdict from those of all ranks. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.outcome import Crash, NonFinite, Ok, Oom, Outcome, Timeout, Unsupported


@dataclass(frozen=True)
class RankOutcome:
    """What one rank's processes came to."""

    rank: int
    outcome: Outcome
    stopped: bool = False
    """It was ended because another rank had failed, so its own end says nothing."""


def join(ended: Sequence[RankOutcome], accumulation_steps: int) -> Outcome:
    """Return the verdict on a probe of several ranks, given in the order in which they ended.

    It is Ok if all are: the memory is that of the rank with the largest peak, the timing that of the slowest at this
    accumulation, losses are means. Else the failure that explains the others stands, with its rank: memory first, then
    a process that died, then what a rank said of itself (a peer that is gone raises exceptions in the others, later),
    and a deadline last. Among equals the first to end.
    """
    in_order = sorted(ended, key=lambda entry: entry.rank)
    fine = [entry.outcome for entry in in_order if isinstance(entry.outcome, Ok)]
    if len(fine) == len(ended):
        return _together(fine, accumulation_steps)
    failed = [entry for entry in ended if not isinstance(entry.outcome, Ok)]
    # All are stopped where the tuner itself ended the probe.
    causes = [entry for entry in failed if not entry.stopped] or failed
    return _named(min(causes, key=lambda entry: _weight(entry.outcome)))


def _weight(outcome: Outcome) -> int:
    match outcome:
        case Oom():
            return 0
        case Crash(reason="signal" | "exit" | "protocol" | "lost"):
            return 1
        case NonFinite():
            return 2
        case Unsupported():
            return 3
        case Crash():
            return 4
        case Timeout():
            return 5
        case _:
            raise AssertionError("what went well explains no failure")


def _named(entry: RankOutcome) -> Outcome:
    match entry.outcome:
        case Oom(message=message) as oom:
            return oom.model_copy(update={"rank": entry.rank, "message": f"rank {entry.rank}: {message}"})
        case Crash(message=message) as crash:
            return crash.model_copy(update={"message": f"rank {entry.rank}: {message}"})
        case other:
            return other


def _together(fine: Sequence[Ok], accumulation_steps: int) -> Ok:
    fullest = max(fine, key=lambda ok: ok.memory.peak())
    slowest = max(fine, key=lambda ok: ok.timing.global_step(accumulation_steps))
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
            # Waiting for a rank that comes later is in the others' times.
            "communication": min(heard, key=lambda own: own.global_step(accumulation_steps), default=None)
            if len(heard) == len(fine)
            else None,
            "losses": tuple(
                statistics.fmean(losses) for losses in zip(*(ok.losses for ok in fine), strict=True)
            ),
            "evaluation_loss": statistics.fmean(evaluations) if evaluations else None,
            "checkpoint_bytes": max(checkpoints, default=None),
        }
    )
