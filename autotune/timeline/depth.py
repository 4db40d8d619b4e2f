"""Put back the blocks that a trace left out: a micro-step over few blocks of a model becomes one over all of them.

The blocks of a Transformer are alike, so their allocations and releases are too: two neighbours in the middle differ in
their tensors' names alone. A trace of the first few blocks and the last ones therefore tells what all do. What one
block does is written down relative to itself ("releases what the block before it made third in its forward"), is
compared with its neighbour's, and is then repeated for those that were left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from autotune.timeline.step_events import Accumulated, StepEvents

Pass = Literal["forward", "backward"]
Span = tuple[int, int]
"""From which event (or call) on, and before which."""


class LeftOutBlocks(NamedTuple):
    """Blocks that are left out behind `kept[end - 1]`; those that stand for them are the `period` before its twins."""

    end: int
    """Position, among those kept, of the first block behind the gap."""
    period: int
    """After so many blocks they repeat. Of the last two times `period` before `end`, the first are the template."""

    @property
    def template(self) -> range:
        """The positions of the blocks that are repeated."""
        return range(self.end - 2 * self.period, self.end - self.period)


@dataclass(frozen=True)
class Shortened:
    """Which blocks of a model a trace runs through."""

    kept: tuple[int, ...]
    """Their numbers in the model, in order."""
    cuts: tuple[LeftOutBlocks, ...]
    parameters: tuple[tuple[int, ...], ...]
    """Of each block of the model, the numbers of its parameters."""

    def gap(self, cut: LeftOutBlocks) -> range:
        """Return the numbers of the blocks that a cut leaves out."""
        return range(self.kept[cut.end - 1] + 1, self.kept[cut.end])

    def stands_for(self, cut: LeftOutBlocks, number: int) -> int:
        """Return the position of the block that is repeated for one that was left out."""
        return cut.template[(number - self.kept[cut.template[0]]) % cut.period]


@dataclass(frozen=True)
class Spans:
    """Where the kept blocks' passes lie in a micro-step, by their positions; without gaps between neighbours."""

    forward: list[Span] = field(default_factory=list)
    backward: list[Span] = field(default_factory=list)
    """Empty for a pass without gradients."""

    def passes(self) -> list[tuple[Pass, int, Span]]:
        """Return all spans in the order of time, each with its pass and position."""
        last = len(self.forward) - 1
        return [("forward", position, span) for position, span in enumerate(self.forward)] + [
            ("backward", last - index, span) for index, span in enumerate(reversed(self.backward))
        ]

    def of(self, during: Pass, position: int) -> Span:
        """Return the span of a block's pass."""
        return (self.forward if during == "forward" else self.backward)[position]


class _Made(NamedTuple):
    """Where an allocation of a block stands."""

    during: Pass
    position: int
    """Of the block, among those kept."""
    order: int
    """Among the allocations of that pass of that block."""


class NotAlike(Exception):
    """Blocks that should do the same do not, or something beside them depends on their number."""


class Deepened(NamedTuple):
    """A micro-step over all blocks of the model."""

    micro: StepEvents
    spans: Spans
    """Where the blocks lie in it."""
    counterpart: Callable[[int, int, int], int | None]
    """Given (slot, position, number): the slot that is to block `number` what `slot` is to the one kept at `position`.

    None where no block made it."""


def deepen(
    micro: StepEvents, spans: Spans, shortened: Shortened, copy: Callable[[int, int, int], int],
    alike: Callable[[int, int], bool],
) -> Deepened:  # fmt: skip
    """Return a micro-step over all blocks of the model.

    `copy(slot, position, number)` makes the slot that stands, in block `number`, where `slot` stands in the block that
    is kept at `position`; `alike` compares two slots but for their place in the model. Raises NotAlike.
    """
    deepening = _Deepening(micro, spans, shortened, copy, alike)
    return Deepened(*deepening.run(), deepening.counterpart)


def repeat(calls: Sequence[int], spans: Sequence[Span], shortened: Shortened) -> tuple[list[int], list[Span]]:
    """Return the calls of a pass over all blocks, and the span of each; `spans` are of the kept ones, by position."""
    ends = {cut.end: cut for cut in shortened.cuts}
    found: list[int] = []
    places: dict[int, Span] = {}

    def append(number: int, span: Span) -> None:
        places[number] = len(found), len(found) + span[1] - span[0]
        found.extend(calls[slice(*span)])

    done = 0
    backwards = len(spans) > 1 and spans[0][0] > spans[-1][0]
    for position in reversed(range(len(spans))) if backwards else range(len(spans)):
        start, end = spans[position]
        cut = ends.get(position + 1 if backwards else position)
        found.extend(calls[done:start])
        if cut is not None:
            for number in reversed(shortened.gap(cut)) if backwards else shortened.gap(cut):
                append(number, spans[shortened.stands_for(cut, number)])
        append(shortened.kept[position], (start, end))
        done = end
    return [*found, *calls[done:]], [places[number] for number in sorted(places)]


def _followed(spans: Spans, events: Sequence[int]) -> Spans:
    """Return the spans with what is released right behind the last block in its own.

    Without gradients a model lets go of a block's input when it has its output: of the last block's behind the block.
    """
    forward = list(spans.forward)
    if forward:
        start, end = forward[-1]
        while end < len(events) and events[end] < 0:
            end += 1
        forward[-1] = (start, end)
    return Spans(forward, spans.backward)


class _Deepening:
    def __init__(
        self, micro: StepEvents, spans: Spans, shortened: Shortened, copy: Callable[[int, int, int], int],
        alike: Callable[[int, int], bool],
    ) -> None:  # fmt: skip
        self._micro = micro
        self._shortened = shortened
        self._copy = copy
        self._alike = alike
        self._passes = _followed(spans, micro.events).passes()
        self._positions = {number: position for position, number in enumerate(shortened.kept)}
        self._made: dict[int, _Made] = {}
        self._slots: dict[tuple[Pass, int], list[int]] = {}
        for during, position, (start, end) in self._passes:
            slots = [event for event in micro.events[start:end] if event >= 0]
            self._slots[during, position] = slots
            self._made |= {slot: _Made(during, position, order) for order, slot in enumerate(slots)}
        self._reaches = {cut: self._reached_by(cut) for cut in shortened.cuts}
        self._copies: dict[tuple[Pass, int], list[int]] = {}
        self._spans: dict[tuple[Pass, int], Span] = {}
        self._arrived: dict[tuple[Pass, int], list[Accumulated]] = defaultdict(list)
        for entry in micro.accumulated:
            if entry.slot in self._made:
                made = self._made[entry.slot]
                self._arrived[made.during, made.position].append(entry)
        self._noted = {position for position, _ in micro.marks}
        self._noted |= {entry.position for entry in micro.accumulated if entry.slot not in self._made}
        self._owner = {
            parameter: (number, order)
            for number, parameters in enumerate(shortened.parameters)
            for order, parameter in enumerate(parameters)
        }

    def _reached_by(self, cut: LeftOutBlocks) -> set[tuple[Pass, Pass, int, int]]:
        """Return what the blocks that are repeated reach for: in which pass, made in which, how far on, and which."""
        found: set[tuple[Pass, Pass, int, int]] = set()
        for during, position, (start, end) in self._passes:
            if cut.end - 2 * cut.period <= position < cut.end:
                for event in self._micro.events[start:end]:
                    made = self._made.get(event if event >= 0 else ~event)
                    if made is not None:
                        found.add((during, made.during, made.position - position, made.order))
        return found

    def run(self) -> tuple[StepEvents, Spans]:
        self._compare()
        result = StepEvents()
        moved: dict[int, int] = {}  # new positions, for marks and for gradients outside of blocks
        done = 0
        ends = {cut.end: cut for cut in self._shortened.cuts}
        for during, position, (start, end) in self._passes:
            self._outside(done, start, result, moved)
            cut = ends.get(position if during == "forward" else position + 1)
            if cut is not None:
                numbers = self._shortened.gap(cut)
                for number in numbers if during == "forward" else reversed(numbers):
                    self._block(during, self._shortened.stands_for(cut, number), number, result)
            moved |= {old: len(result.events) + old - start for old in range(start, end)}
            self._block(during, position, self._shortened.kept[position], result)
            done = end
        self._outside(done, len(self._micro.events), result, moved)
        moved[len(self._micro.events)] = len(result.events)
        result.marks.extend((moved[position], phase) for position, phase in self._micro.marks)
        result.accumulated.extend(
            entry._replace(position=moved[entry.position])
            for entry in self._micro.accumulated
            if entry.slot not in self._made
        )
        result.accumulated.sort(key=lambda entry: entry.position)
        return result, Spans(
            *([self._spans[during, number] for number in range(len(self._shortened.parameters))
               if (during, number) in self._spans] for during in ("forward", "backward"))
        )  # fmt: skip

    def counterpart(self, slot: int, position: int, number: int) -> int | None:
        """Return the slot that is to a block what another is to the one kept at `position`."""
        made = self._made.get(slot)
        return None if made is None else self._slot(made, number + made.position - position)

    def _compare(self) -> None:
        """Raise NotAlike unless the blocks to be repeated do what those after them do."""
        spans = {(during, position): span for during, position, span in self._passes}
        for cut in self._shortened.cuts:
            for position in cut.template:
                for during in {during for during, _ in spans}:
                    ours, theirs = (self._relative(during, at, spans[during, at])
                                    for at in (position, position + cut.period))  # fmt: skip
                    if ours != theirs:
                        raise NotAlike(f"blocks {position} and {position + cut.period} differ in {during}")
                    slots = (self._slots[during, at] for at in (position, position + cut.period))
                    if not all(self._alike(*pair) for pair in zip(*slots, strict=True)):
                        raise NotAlike(f"blocks {position} and {position + cut.period} allocate other sizes")

    def _relative(self, during: Pass, position: int, span: Span) -> list[object]:
        """Return what a block does, told by where it stands."""
        told: list[object] = []
        for event in self._micro.events[slice(*span)]:
            made = self._made.get(event if event >= 0 else ~event)
            if made is None:
                raise NotAlike(f"block {position} releases in {during} what was made outside of blocks")
            told.append((event >= 0, made.during, made.position - position, made.order))
        number = self._shortened.kept[position]
        for entry in self._arrived[during, position]:
            owner, order = self._owner.get(entry.parameter, (-1, -1))
            if owner != number:
                raise NotAlike(f"block {position} has the gradient of a parameter that is not its own")
            told.append((entry.position - span[0], order, self._made[entry.slot].order, entry.copied))
        return told

    def _block(self, during: Pass, position: int, number: int, result: StepEvents) -> None:
        """Append what the block at `position` does, as block `number` of the model does it."""
        start, end = next(span for name, at, span in self._passes if (name, at) == (during, position))
        begin = len(result.events)
        for event in self._micro.events[start:end]:
            slot = event if event >= 0 else ~event
            made = self._made.get(slot)
            if made is not None and self._is_relative(during, position, made):
                slot = self._slot(made, number + made.position - position)
            result.events.append(slot if event >= 0 else ~slot)
        self._spans[during, number] = begin, len(result.events)
        own = self._shortened.parameters
        for entry in self._arrived[during, position]:
            owner, order = self._owner[entry.parameter]
            result.accumulated.append(
                entry._replace(
                    position=begin + entry.position - start,
                    parameter=own[number][order]
                    if owner == self._shortened.kept[position]
                    else entry.parameter,
                    slot=self._slot(self._made[entry.slot], number),
                )
            )

    def _is_relative(self, during: Pass, position: int, made: _Made) -> bool:
        """Tell whether a block reaches for its neighbour so many blocks on, or else for one block of the model.

        What all blocks share, a mask that backward fetches for the last of them and drops after the first, is reached
        for across the gap by the first alone; what blocks hand on to their neighbours, by those that are repeated too.
        """
        low, high = sorted((position, made.position))
        reach = (during, made.during, made.position - position, made.order)
        return all(reach in self._reaches[cut] for cut in self._shortened.cuts if low < cut.end <= high)

    def _slot(self, made: _Made, number: int) -> int:
        """Return the slot that stands in block `number` where `made` stands in its own."""
        if not 0 <= number < len(self._shortened.parameters):
            raise NotAlike(f"a block reaches for block {number}, which there is not")
        if number in self._positions:
            slots = self._slots[made.during, self._positions[number]]
            if made.order >= len(slots):
                raise NotAlike(f"block {number} makes less in {made.during} than another")
            return slots[made.order]
        if (made.during, number) not in self._copies:
            cut = next(cut for cut in self._shortened.cuts if number in self._shortened.gap(cut))
            position = self._shortened.stands_for(cut, number)
            self._copies[made.during, number] = [
                self._copy(slot, position, number) for slot in self._slots[made.during, position]
            ]
        return self._copies[made.during, number][made.order]

    def _outside(self, start: int, end: int, result: StepEvents, moved: dict[int, int]) -> None:
        """Append what happens between blocks, with what it releases of those that were left out.

        Raises NotAlike where that is not the same of each.
        """
        row: list[int] = []
        for old in range(start, end):
            event = self._micro.events[old]
            if event >= 0 or old in self._noted:
                self._release(row, result)
                row = []
            moved[old] = len(result.events)
            if event >= 0:
                result.events.append(event)
            else:
                row.append(~event)
        self._release(row, result)

    def _release(self, row: list[int], result: StepEvents) -> None:
        """Append releases in a row, whose order does not matter, with those of blocks left out: block by block."""
        told: dict[int, list[_Made]] = defaultdict(list)
        for slot in row:
            if slot in self._made:
                told[self._made[slot].position].append(self._made[slot])
            else:
                result.events.append(~slot)
        released = {self._shortened.kept[position]: made for position, made in told.items()}
        for cut in self._shortened.cuts:
            for position in cut.template:
                ours, theirs = (sorted((made.during, made.order) for made in told[at])
                                for at in (position, position + cut.period))  # fmt: skip
                if ours != theirs:
                    raise NotAlike("what is outside of blocks releases other things of each")
            for number in self._shortened.gap(cut):
                released[number] = told[self._shortened.stands_for(cut, number)]
        for number in sorted(released):
            in_order = sorted(released[number], key=lambda made: (made.during, made.order))
            result.events.extend(~self._slot(made, number) for made in in_order)
