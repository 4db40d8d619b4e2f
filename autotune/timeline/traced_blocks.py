"""Where the repeated blocks of a model lie in a traced micro-step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.outcome import Phase
from autotune.timeline.depth import Spans
from autotune.timeline.op_counts import Counts


@dataclass(frozen=True)
class BlockWork:
    """The operators of one block in a micro-step, by phase, as in `OpCounts`."""

    micro: dict[Phase, Counts]
    single: dict[Phase, Counts]


@dataclass(frozen=True)
class SortsOfWork:
    """The operators of one block of each sort, from the middle of its sort."""

    checkpointed: BlockWork
    other: BlockWork


@dataclass(frozen=True)
class TracedBlocks:
    """The repeated blocks of a model, of which the first are checkpointed and the others not."""

    names: list[str]
    """Of their modules, in order."""
    parameters: list[list[int]]
    """Of each block the numbers of its parameters, in the order of the model's."""
    checkpointed: int
    micro: Spans
    single: Spans | None
    """At micro-batch 1."""
    work: SortsOfWork | None = None

    @classmethod
    def parse(cls, data: dict[str, Any]) -> TracedBlocks:
        """Return what a timeline's JSON holds."""
        spans = {name: None if data[name] is None else _spans(data[name]) for name in ("micro", "single")}
        work = data["work"] and SortsOfWork(**{sort: _work(own) for sort, own in data["work"].items()})
        return cls(**{**data, **spans, "work": work})


def _spans(data: dict[str, Any]) -> Spans:
    return Spans(*([(start, end) for start, end in data[during]] for during in ("forward", "backward")))


def _work(data: dict[str, Any]) -> BlockWork:
    return BlockWork(
        **{
            name: {phase: [(index, count) for index, count in counts] for phase, counts in phases.items()}
            for name, phases in data.items()
        }
    )
