"""The memory of a training as a list of allocations and releases, whose sizes are affine in the micro-batch.

A timeline is pure data: a worker traces it once (`autotune.train.trace`), and any micro-batch is then priced
here without torch. Its parts are stretches of a training that repeat: building the model, one micro-step (forward
and backward into empty gradients), the first optimizer step (which makes the optimizer's state) and every later
one. A probe is put together from them: build, then twice (micro-steps, optimizer step).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from autotune.errors import InputError
from autotune.memory.allocator import MIN_BLOCK, OutOfDeviceMemory, Usage, simulate
from autotune.outcome import Phase
from autotune.timing.work import Work

FORMAT = 2
"""Raised with every change that older code would misread; cached traces of another format are ignored."""

Category = Literal[
    "parameter", "gradient", "optimizer_state", "activation", "buffer", "workspace", "temporary"
]
CATEGORIES: tuple[Category, ...] = (
    "parameter", "gradient", "optimizer_state", "activation", "buffer", "workspace", "temporary",
)  # fmt: skip
"""What an allocation holds. Activations are what forward leaves for backward; `workspace` is a kernel's scratch."""

Place = Literal["device", "host"]
PLACES: tuple[Place, ...] = ("device", "host")


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


class Accumulated(NamedTuple):
    """A parameter's gradient arrived, after event `position` of the micro-step."""

    position: int
    parameter: int
    """The parameter's number, in the order of the model's parameters."""
    slot: int
    copied: bool
    """Autograd copied it into storage of its own, which it does not when adding to an earlier gradient."""


@dataclass(frozen=True)
class Segment:
    """A stretch of the training that repeats as a whole."""

    events: list[int] = field(default_factory=list)
    """Slot numbers: s allocates slot s, ~s (that is, -s - 1) releases it."""
    marks: list[tuple[int, Phase]] = field(default_factory=list)
    """Where a phase begins: (index into `events`, phase)."""
    accumulated: list[Accumulated] = field(default_factory=list)


class Holder(NamedTuple):
    """A module and the bytes that it holds at the peak, in one category."""

    module: str
    category: Category
    bytes: int


@dataclass(frozen=True)
class Peak:
    """The most memory that tensors take at one time, where in the step that is, and what takes it."""

    bytes: int
    phase: Phase
    step: int
    """Optimizer step, 1 or 2; 0 for the build."""
    event: int
    """Index of the event of the composed timeline at which the peak is reached."""
    breakdown: dict[Category, int]
    holders: tuple[Holder, ...]
    """The largest, largest first."""


@dataclass(frozen=True)
class Timeline:
    """Allocations and releases of a training, for any micro-batch."""

    device: Literal["cpu", "cuda"]
    """Whose kernels and allocation sizes it follows."""
    slots: Slots
    modules: list[str]
    build: Segment
    micro: Segment
    """One micro-step at any micro-batch from 2 on (or at `exact`)."""
    single: Segment | None
    """One micro-step at micro-batch 1, where copies of dimensions of size 1 vanish."""
    first_update: Segment
    update: Segment
    work: Work | None = None
    """What the operators compute and move; None in a timeline made by hand."""
    exact: int | None = None
    """The only micro-batch that the timeline holds for; None where sizes are affine and every one is covered."""
    facts: dict[str, str | int | float] = field(default_factory=dict)
    """What was traced: model class, sequence length, versions, seconds."""

    def sizes(self, micro_batch: int, rounding: int = 1) -> list[int]:
        """Return the bytes of every slot, rounded up to a multiple of `rounding`."""
        pairs = zip(self.slots.base, self.slots.slope, strict=True)
        if rounding == 1:
            return [base + slope * micro_batch for base, slope in pairs]
        return [-(-(base + slope * micro_batch) // rounding) * rounding for base, slope in pairs]

    def covers(self, micro_batch: int) -> bool:
        """Say whether this micro-batch can be priced."""
        if self.exact is not None:
            return micro_batch == self.exact
        return micro_batch > 1 or self.single is not None

    def program(self, micro_batch: int, accumulating: bool = False, updates: int = 2) -> Program:
        """Compose a probe of `updates` optimizer steps, each after one micro-step (two where accumulating)."""
        assert self.covers(micro_batch), f"micro-batch {micro_batch} was not traced"
        alone = micro_batch == 1 and self.single is not None
        return _compose(self, self.single if alone and self.single else self.micro, accumulating, updates)

    def peak(self, micro_batch: int, accumulating: bool = False, place: Place = "device") -> Peak:
        """Return the peak of the tensors' own bytes (cpu), or of the allocator's blocks of 512 B (cuda)."""
        program = self.program(micro_batch, accumulating)
        sizes = self._sizes_in(place, micro_batch)
        levels = _levels(program.events, sizes)
        at = max(range(len(levels)), key=levels.__getitem__, default=0)
        return self._explain(program, sizes, at, levels[at] if levels else 0)

    def allocated(self, micro_batch: int, accumulating: bool = False, place: Place = "device") -> int:
        """Return the bytes of `peak` alone; fast."""
        program = self.program(micro_batch, accumulating)
        return max(_levels(program.events, self._sizes_in(place, micro_batch)), default=0)

    def usage(
        self,
        micro_batch: int,
        accumulating: bool = False,
        expandable_segments: bool = False,
        *,
        split_limit: int | None = None,
        capacity: int | None = None,
        blas_workspace: int = 0,
    ) -> Usage:
        """Run the requests of the device through the simulated caching allocator.

        `blas_workspace` (bytes) is allocated twice and kept, as cuBLAS does: for the thread of the forward pass at
        its first matrix product, and for autograd's thread at the first of the backward pass. Raises
        OutOfDeviceMemory, with the phase, beyond `capacity`.
        """
        program = self.program(micro_batch, accumulating)
        sizes = self._sizes_in("device", micro_batch, rounding=1)
        position = 0

        def requests() -> Iterator[tuple[int, int]]:
            nonlocal position
            for position, name, size in _requests(program, sizes, blas_workspace):  # noqa: B007
                yield name, size

        try:
            return simulate(requests(), capacity, expandable_segments, split_limit)
        except OutOfDeviceMemory as refused:
            refused.phase = program.phase_at(position)[0]
            raise

    def curve(self, micro_batch: int, accumulating: bool = False) -> list[tuple[Phase, int, int]]:
        """Return (phase, optimizer step, bytes on the device) after every event, for drawing."""
        program = self.program(micro_batch, accumulating)
        levels = _levels(program.events, self._sizes_in("device", micro_batch))
        result: list[tuple[Phase, int, int]] = []
        for (start, phase, step), end in zip(
            program.marks, [*(mark[0] for mark in program.marks[1:]), len(levels)], strict=True
        ):
            result += [(phase, step, level) for level in levels[start:end]]
        return result

    def _sizes_in(self, place: Place, micro_batch: int, rounding: int | None = None) -> list[int]:
        if rounding is None:
            rounding = MIN_BLOCK if self.device == "cuda" and place == "device" else 1
        sizes = self.sizes(micro_batch, rounding)
        wanted = PLACES.index(place)
        if any(value != wanted for value in self.slots.place):
            return [
                size if value == wanted else 0 for size, value in zip(sizes, self.slots.place, strict=True)
            ]
        return sizes

    def _explain(self, program: Program, sizes: Sequence[int], at: int, total: int) -> Peak:
        alive: dict[int, int] = defaultdict(int)  # slot -> how many instances are alive
        for event in program.events[: at + 1]:
            if event >= 0:
                alive[event] += 1
            else:
                alive[~event] -= 1
        breakdown: dict[Category, int] = dict.fromkeys(CATEGORIES, 0)
        holders: dict[tuple[int, int], int] = defaultdict(int)
        for slot, count in alive.items():
            size = sizes[slot] * count
            breakdown[CATEGORIES[self.slots.category[slot]]] += size
            holders[self.slots.module[slot], self.slots.category[slot]] += size
        largest = sorted(holders.items(), key=lambda item: -item[1])[:12]
        phase, step = program.phase_at(at)
        return Peak(
            bytes=total,
            phase=phase,
            step=step,
            event=at,
            breakdown=breakdown,
            holders=tuple(
                Holder(self.modules[module], CATEGORIES[category], size)
                for (module, category), size in largest
                if size
            ),
        )

    def dump(self) -> str:
        """Return the timeline as JSON text, for the cache."""
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Timeline:
        """Read what `dump` wrote. Raises InputError where it is something else or of another format."""
        try:
            data = json.loads(text)
            if data.pop("format") != FORMAT:
                raise InputError(f"this trace was not written in format {FORMAT}; trace the model again")
            for name in ("build", "micro", "single", "first_update", "update"):
                data[name] = None if data[name] is None else _segment(data[name])
            data["slots"] = Slots(**data["slots"])
            data["work"] = None if data["work"] is None else Work.parse(data["work"])
            return cls(**data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise error if isinstance(error, InputError) else InputError(f"not a trace: {error}") from error


class Program(NamedTuple):
    """The composed events of a whole probe."""

    events: list[int]
    """As in `Segment`; a slot may be alive more than once (gradients of several micro-steps have their own)."""
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


def _segment(data: dict[str, Any]) -> Segment:
    return Segment(
        events=data["events"],
        marks=[(position, phase) for position, phase in data["marks"]],
        accumulated=[Accumulated(*entry) for entry in data["accumulated"]],
    )


def _compose(timeline: Timeline, micro: Segment, accumulating: bool, updates: int) -> Program:
    events: list[int] = []
    marks: list[tuple[int, Phase, int]] = []
    names = renamed(timeline.micro, micro)
    released = {names.get(~event, ~event) for event in timeline.first_update.events if event < 0}
    # What a first micro-step leaves for good, such as a batch that is made once, the later ones do not make again.
    kept = set(survivors(micro)) - released
    later = _without(micro, kept)
    again = _without(into_existing(micro), kept) if accumulating else None
    leftovers = survivors(again) if again is not None else []

    def append(segment: Segment, step: int) -> None:
        start = len(events)
        marks.extend((start + position, phase, step) for position, phase in segment.marks)
        events.extend(segment.events)

    append(timeline.build, 0)
    for step in range(1, updates + 1):
        append(micro if step == 1 else later, step)
        if again is not None:
            append(again, step)
        update = timeline.first_update if step == 1 else timeline.update
        start = len(events)
        marks.extend((start + position, phase, step) for position, phase in update.marks)
        events.extend(
            ~names.get(~event, ~event) if event < 0 else event for event in update.events
        ) if names else events.extend(update.events)
        events.extend(~slot for slot in leftovers)
    return Program(events, marks)


def into_existing(micro: Segment) -> Segment:
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
    return Segment(events, [(moved[position], phase) for position, phase in micro.marks])


def _without(segment: Segment, slots: set[int]) -> Segment:
    """Return a segment whose allocations of some slots are left out, for composing; it follows no gradients."""
    if not slots:
        return segment
    moved = [0, *accumulate(event not in slots for event in segment.events)]
    events = [event for event in segment.events if event not in slots]
    return Segment(events, [(moved[position], phase) for position, phase in segment.marks])


def survivors(segment: Segment) -> list[int]:
    """Return the slots that are alive at the end of a segment which allocated them."""
    alive = dict.fromkeys(event for event in segment.events if event >= 0)
    for event in segment.events:
        if event < 0:
            alive.pop(~event, None)
    return list(alive)


def renamed(traced: Segment, micro: Segment) -> dict[int, int]:
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


def _levels(events: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the bytes alive after every event."""
    # Releases index from the end: ~s is s from the back of the doubled, mirrored list.
    deltas = [*sizes, *(-size for size in reversed(sizes))]
    return list(accumulate([deltas[event] for event in events]))


def _requests(program: Program, sizes: Sequence[int], blas_workspace: int) -> Iterator[tuple[int, int, int]]:
    """Yield (index of the event, name, size) of the allocator's requests; the last instance of a slot goes first."""
    kept = {}
    if blas_workspace:
        for phase in ("forward", "backward"):
            kept[next(start for start, name, _ in program.marks if name == phase)] = phase
    names: dict[int, list[int]] = defaultdict(list)
    counter = 0
    for position, event in enumerate(program.events):
        if position in kept:
            counter += 1
            yield position, counter, blas_workspace
        if event >= 0:
            if sizes[event] > 0:
                counter += 1
                names[event].append(counter)
                yield position, counter, sizes[event]
        elif sizes[~event] > 0:
            yield position, names[~event].pop(), 0
