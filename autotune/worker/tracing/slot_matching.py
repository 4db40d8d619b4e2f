"""Slots of one traced step and those of another: which stand for the same allocation."""

from __future__ import annotations

from autotune.timeline.step_events import StepEvents
from autotune.worker.tracing.block_borders import BlockPasses
from autotune.worker.tracing.step_tracer import Unlike


def matched_slots(ours: StepEvents, theirs: StepEvents) -> dict[int, int]:
    """Map the slots of one micro-step to those of another. Raises Unlike where their events differ."""
    if len(ours.events) != len(theirs.events):
        raise Unlike(f"{len(ours.events)} and {len(theirs.events)} events")
    same: dict[int, int] = {}
    for position, (our, their) in enumerate(zip(ours.events, theirs.events, strict=True)):
        if our >= 0 and their >= 0:
            same[our] = their
        elif our >= 0 or their >= 0 or same.get(~our) != ~their:
            raise Unlike(f"event {position} of {len(ours.events)} differs")
    return same


def made_in(segment: StepEvents, blocks: BlockPasses | None) -> set[int]:
    """Return the slots of a micro-step that blocks make."""
    spans = [] if blocks is None else [*blocks.spans.forward, *blocks.spans.backward]
    return {event for start, end in spans for event in segment.events[start:end] if event >= 0}


def releases_its_own(building: StepEvents, segment: StepEvents) -> bool:
    """Tell whether a micro-step releases only what it made, or what was built."""
    made = {event for event in (*building.events, *segment.events) if event >= 0}
    return all(~event in made for event in segment.events if event < 0)


def with_slots_renamed(segment: StepEvents, names: dict[int, int]) -> StepEvents:
    """Return a step whose events are those of other slots; those without another name keep theirs."""
    return StepEvents([translated(event, names) for event in segment.events], segment.marks)


def translated(event: int, names: dict[int, int]) -> int:
    """Return an event, an allocation or a release, of the slot that `names` has for its own."""
    return names.get(event, event) if event >= 0 else ~names.get(~event, ~event)
