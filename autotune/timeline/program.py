"""The events of a whole probe, composed of the stretches of a training that repeat."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from autotune.outcome import Phase
from autotune.timeline.step_events import StepEvents, renamed, survivors, without


class Parts(NamedTuple):
    """The stretches that a training repeats."""

    build: StepEvents
    micro: StepEvents
    first_update: StepEvents
    """The optimizer step that makes the optimizer's state; its slots are named after those of `micro`."""
    update: StepEvents


class Fullest(NamedTuple):
    """Where a program has most bytes alive."""

    bytes: int
    """With `workspaces`."""
    workspaces: int
    """Bytes that cuBLAS holds of them."""
    event: int
    """Index of the event after which it is so."""
    during: int
    """Index of an event of the phase in which it is so: the next one's first where that begins with a workspace."""


class Program(NamedTuple):
    """The composed events of a whole probe."""

    events: list[int]
    """As in `StepEvents`; a slot may be alive more than once (gradients of several micro-steps have their own)."""
    marks: list[tuple[int, Phase, int]]
    """(index into `events`, phase, optimizer step)."""

    def phase_at(self, event: int) -> tuple[Phase, int]:
        """Return the phase and the optimizer step that an event belongs to."""
        found: tuple[Phase, int] = ("build", 0)
        for start, phase, step in self.marks:
            if start > event:
                break
            found = (phase, step)
        return found

    def levels(self, sizes: Sequence[int]) -> list[int]:
        """Return the bytes alive after every event."""
        # Releases index from the end: ~s is s from the back of the doubled, mirrored list.
        deltas = [*sizes, *(-size for size in reversed(sizes))]
        return list(accumulate(map(deltas.__getitem__, self.events)))

    def fullest(self, sizes: Sequence[int], blas_workspace: int = 0) -> Fullest:
        """Return where most bytes are alive, with the workspaces (bytes each) that cuBLAS has taken by then."""
        levels = [0, *self.levels(sizes)]  # the first is before all events
        starts = self.workspaces() if blas_workspace else []
        at = max(range(len(levels)), key=levels.__getitem__)
        found = Fullest(levels[at], 0, max(0, at - 1), max(0, at - 1))
        for held, (start, end) in enumerate(pairwise([*starts, len(levels) - 1]), 1):
            # A workspace is taken before its phase's first event, beside what is alive then.
            at = max(range(start, end + 1), key=levels.__getitem__)
            total = levels[at] + held * blas_workspace
            if total > found.bytes:
                found = Fullest(total, held * blas_workspace, max(0, at - 1), max(start, at - 1))
        return found

    def workspaces(self) -> list[int]:
        """Return the events before which cuBLAS takes a workspace: for the thread of forward, and for autograd's."""
        return [
            next(start for start, name, _ in self.marks if name == phase) for phase in ("forward", "backward")
        ]


def compose(parts: Parts, micro: StepEvents, accumulating: bool, updates: int) -> Program:
    """Put a probe together: the build, then `updates` times one micro-step (two where accumulating) and an update.

    `micro` is the micro-step to take: the traced one of `parts`, or its variant for micro-batch 1.
    """
    events: list[int] = []
    marks: list[tuple[int, Phase, int]] = []
    names = renamed(parts.micro, micro)
    released = {names.get(~event, ~event) for event in parts.first_update.events if event < 0}
    # What a first micro-step leaves for good, such as a batch that is made once, the later ones do not make again.
    kept = set(survivors(micro)) - released
    later = without(micro, kept)
    again = without(micro.repeated, kept) if accumulating else None
    leftovers = survivors(again) if again is not None else []

    def append(segment: StepEvents, step: int) -> None:
        marks.extend((len(events) + position, phase, step) for position, phase in segment.marks)
        events.extend(segment.events)

    append(parts.build, 0)
    for step in range(1, updates + 1):
        append(micro if step == 1 else later, step)
        if again is not None:
            append(again, step)
        update = parts.first_update if step == 1 else parts.update
        append(_releasing(update, names), step)
        events.extend(~slot for slot in leftovers)
    return Program(events, marks)


def _releasing(update: StepEvents, names: dict[int, int]) -> StepEvents:
    """Return an update that releases the slots which the micro-step really made."""
    if not names:
        return update
    events = [~names.get(~event, ~event) if event < 0 else event for event in update.events]
    return StepEvents(events, update.marks)
