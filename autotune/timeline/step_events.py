"""A stretch of a training as allocations and releases, the words for what they hold, and how stretches fit together."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from autotune.outcome import Phase

CUDA_BLOCK = 512
"""Every block is a multiple of this (`kMinBlockSize`)."""

Category = Literal[
    "parameter", "gradient", "optimizer_state", "activation", "buffer", "workspace", "temporary"
]
CATEGORIES: tuple[Category, ...] = (
    "parameter", "gradient", "optimizer_state", "activation", "buffer", "workspace", "temporary",
)  # fmt: skip
"""What an allocation holds. Activations are what forward leaves for backward; `workspace` is a kernel's scratch."""

Place = Literal["device", "host", "disk"]
PLACES: tuple[Place, ...] = ("device", "host", "disk")


@dataclass(frozen=True)
class Slots:
    """One entry for each allocation of the trace; all lists are of equal length."""

    base: list[int] = field(default_factory=list)
    slope: list[int] = field(default_factory=list)
    """An allocation takes base + slope x micro-batch bytes."""
    category: list[int] = field(default_factory=list)
    """Index into CATEGORIES."""
    place: list[int] = field(default_factory=list)
    """Index into PLACES."""
    module: list[int] = field(default_factory=list)
    """Index into the timeline's `modules`."""

    def size(self, slot: int) -> tuple[int, int, int]:
        """Return how large a slot is (base, slope), and where."""
        return self.base[slot], self.slope[slot], self.place[slot]

    def copy(self) -> Slots:
        """Return slots of their own, to which more can be added."""
        return Slots(
            list(self.base), list(self.slope), list(self.category), list(self.place), list(self.module)
        )

    def add(self, slots: Slots, slot: int, module: int) -> int:
        """Add a slot like one of others, for a module of these; return its number."""
        self.base.append(slots.base[slot])
        self.slope.append(slots.slope[slot])
        self.category.append(slots.category[slot])
        self.place.append(slots.place[slot])
        self.module.append(module)
        return len(self.base) - 1


class Accumulated(NamedTuple):
    """A parameter's gradient arrived, after event `position` of the micro-step."""

    position: int
    parameter: int
    """The parameter's number, in the order of the model's parameters."""
    slot: int
    copied: bool
    """Autograd copied it into storage of its own, which it does not when adding to an earlier gradient."""


@dataclass(frozen=True)
class StepEvents:
    """A stretch of the training that repeats as a whole."""

    events: list[int] = field(default_factory=list)
    """Slot numbers: s allocates slot s, ~s (that is, -s - 1) releases it."""
    marks: list[tuple[int, Phase]] = field(default_factory=list)
    """Where a phase begins: (index into `events`, phase)."""
    accumulated: list[Accumulated] = field(default_factory=list)

    # What follows is computed once, so events are not changed once they were asked for it: rungs that are composed of
    # one another's passes share these.

    @cached_property
    def left_alive(self) -> tuple[int, ...]:
        """The slots that are alive at the end, of those that it allocates."""
        alive = dict.fromkeys(event for event in self.events if event >= 0)
        for event in self.events:
            if event < 0:
                alive.pop(~event, None)
        return tuple(alive)

    @cached_property
    def repeated(self) -> StepEvents:
        """The micro-step that it is where gradients are there already (`into_existing`)."""
        return into_existing(self)

    @classmethod
    def parse(cls, data: dict[str, Any]) -> StepEvents:
        """Return the segment that a timeline's JSON holds."""
        return cls(
            events=data["events"],
            marks=[(position, phase) for position, phase in data["marks"]],
            accumulated=[Accumulated(*entry) for entry in data["accumulated"]],
        )


def into_existing(micro: StepEvents) -> StepEvents:
    """Return a micro-step whose gradients are added to those of an earlier one.

    Autograd adds in place and drops the new gradient at once; where it had copied the gradient into storage of its
    own, no copy is made (`torch/csrc/autograd/functions/accumulate_grad.h`).
    """
    copied = {entry.slot for entry in micro.accumulated if entry.copied}
    taken = {entry.position: entry.slot for entry in micro.accumulated if not entry.copied}
    kept = {entry.slot for entry in micro.accumulated}
    moved: list[int] = []  # new position of every event, for the marks
    events: list[int] = []
    for position, event in enumerate(micro.events):
        if position in taken:
            events.append(~taken[position])
        moved.append(len(events))
        if event >= 0:
            if event not in copied:
                events.append(event)
        elif ~event not in kept:
            events.append(event)
    if len(micro.events) in taken:
        events.append(~taken[len(micro.events)])
    moved.append(len(events))
    return StepEvents(events, [(moved[position], phase) for position, phase in micro.marks])


def without(segment: StepEvents, slots: set[int]) -> StepEvents:
    """Return a segment whose allocations of some slots are left out, for composing; it follows no gradients."""
    if not slots:
        return segment
    moved = [0, *accumulate(event not in slots for event in segment.events)]
    events = [event for event in segment.events if event not in slots]
    return StepEvents(events, [(moved[position], phase) for position, phase in segment.marks])


def survivors(segment: StepEvents) -> list[int]:
    """Return the slots that are alive at the end of a segment which allocated them."""
    return list(segment.left_alive)


def renamed(traced: StepEvents, micro: StepEvents) -> dict[int, int]:
    """Map the slots that the micro-step `traced` leaves behind to those of `micro`: those that an update releases."""
    if micro is traced:
        return {}
    theirs = {entry.parameter: entry.slot for entry in micro.accumulated}
    names = {entry.slot: theirs[entry.parameter] for entry in traced.accumulated if entry.parameter in theirs}
    ours_left = [slot for slot in survivors(traced) if slot not in names]
    gradients = set(theirs.values())
    theirs_left = [slot for slot in survivors(micro) if slot not in gradients]
    assert len(ours_left) == len(theirs_left), "the micro-steps leave different things behind"
    return {**names, **dict(zip(ours_left, theirs_left, strict=True))}
