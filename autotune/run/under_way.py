"""What a tuner is doing, by the last line of its journal."""

from __future__ import annotations

from datetime import UTC, datetime

from autotune.run.events import Asked, Opened, ProofStarted, RematchStarted, Started
from autotune.run.record import Record
from autotune.techniques.families import title as title_of
from autotune.units import format_duration


def under_way(record: Record, now: datetime | None = None) -> str:
    """Return what a tuner does, by the last line of its journal: `probe 7, bf16, micro-batch 4, for 12.3 s`."""
    now = now or datetime.now(UTC)

    def since(time: str) -> str:
        began = datetime.fromisoformat(time)
        return format_duration(max(0.0, (now - began).total_seconds()))

    match record.entries[-1:]:
        case [Started(number=number, candidate=candidate, time=time)]:
            size = candidate.micro_batch
            return f"probe {number}, {title_of(candidate)}, micro-batch {size}, for {since(time)}"
        case [RematchStarted(number=number, round=round_, time=time)]:
            return f"measuring probe {number} again, in round {round_} of the finals, for {since(time)}"
        case [ProofStarted(number=number, time=time)]:
            return f"proof of probe {number}, for {since(time)}"
        case [Opened(time=time)] if record.inspection is None:
            return f"looking at the model, for {since(time)}"
        case [] | [Asked()]:
            return "beginning"
        case _:
            return f"between probes, {len(record.history)} finished"
