"""A micro-step with the blocks of one and the rest of another, told by a third (`timeline.joined`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from autotune.timeline.common_blocks import LAST, CommonBlocks, Names, paired
from autotune.timeline.depth import NotAlike, Span, Spans
from autotune.timeline.divided_step import DividedStep, Key, made_in
from autotune.timeline.step_events import Accumulated, StepEvents

ROUNDING = 64
"""Bytes by which sizes may differ that two traces found at other micro-batches, 2 and 3 or 32 and 33."""


def joined_step(
    shown: CommonBlocks, blocks: DividedStep, new: Callable[[int], int]
) -> tuple[StepEvents, Spans]:
    """Return the micro-step with the blocks of `blocks` and what is beside blocks in `rest`, and where blocks lie.

    `shown` has both `rest` and `common`, which tells what is beside blocks. Slots are those of `blocks`, and those that
    `new` gives for a slot of `rest`. Raises NotAlike where `common` does not have what is beside blocks in `blocks`.
    """
    if list(shown.common.passes) != list(blocks.passes):
        raise NotAlike("the blocks are others")
    return _Joining(shown, blocks, new).run()


class _Joining:
    def __init__(self, shown: CommonBlocks, blocks: DividedStep, new: Callable[[int], int]) -> None:
        self._common, self._rest, self._blocks, self._new = shown.common, shown.rest, blocks, new
        self._rest_of, self._let_go_by_blocks = shown.rest_of, shown.let_go_by_blocks
        self._anchors = shown.anchors
        self._blocks_of = Names()
        """Of slots of `common` that are made beside blocks."""
        self._groups: list[tuple[set[int], list[int]]] = []
        """What of blocks is released in one row beside them, in `common` and in `blocks`."""
        self._group: dict[int, int] = {}
        """By a slot of `rest`."""
        self._anchored: dict[int | None, list[int]] = {}
        """By such a slot of `rest`: what of the blocks of `blocks` is released before it is made."""
        self._at_the_end = blocks.released_when_forward_ends()
        self._at_the_end_of_forward: list[int] = []
        """What of the blocks of `blocks` autocast lets go of, where it keeps nothing of those of `common`."""
        self._left: set[int] = set()
        """Slots of `blocks` that are made beside blocks and released by these, unlike those of `common`."""
        self._released_within = {
            ~event
            for span in blocks.passes.values()
            for event in blocks.step.events[slice(*span)]
            if event < 0
        }
        self._told: set[int] = set()
        """The groups that were released."""
        self._events: list[int] = []
        self._moved: dict[int, int] = {}
        """Where positions of `rest` beside blocks are in the result."""

    def run(self) -> tuple[StepEvents, Spans]:
        self._compare_beside()
        self._match_groups()
        before, between, behind = self._rest.stretches()
        keys = list(self._blocks.passes)
        half = len(keys) // 2
        spans: dict[Key, Span] = {}
        self._append_beside(before)
        spans |= {key: self._append_block(key) for key in keys[:half]}
        self._append_beside(between)
        spans |= {key: self._append_block(key) for key in keys[half:]}
        self._append_beside(behind)
        self._events.extend(~slot for slot in self._anchored.get(None, ()))
        _check(self._events)
        marks = [(self._at(position), phase) for position, phase in self._rest.step.marks]
        numbers = range(half)
        return StepEvents(self._events, marks, self._arrived(spans)), Spans(
            [spans["forward", one] for one in numbers], [spans["backward", one] for one in numbers]
        )

    def _compare_beside(self) -> None:
        """Find what of `common` is what of `blocks`. Raises NotAlike where what is beside their blocks differs."""
        common, blocks, names = self._common, self._blocks, self._blocks_of
        stretches = zip(common.stretches(), blocks.stretches(), strict=True)
        for part, (one, other) in enumerate(stretches):
            for ours, theirs in paired(common.rows(one), blocks.rows(other)):
                ends = ours.made is None and part < LAST
                of_blocks = {slot for slot in ours.released if slot in common.within}
                there = [slot for slot in theirs.released if slot in blocks.within]
                others = {names.of.get(slot, slot) for slot in ours.released if slot not in of_blocks}
                beside = {*theirs.released}.difference(there)
                if not beside <= others:
                    raise NotAlike("other things are released beside blocks")
                self._leave_to_blocks(others - beside)
                if of_blocks:
                    self._groups.append((of_blocks, there))
                elif there and self._at_the_end.issuperset(there):
                    self._at_the_end_of_forward = there
                elif there and not ends and ours.made in self._anchors:
                    self._anchored[self._anchors[ours.made]] = there
                elif there:
                    raise NotAlike("things of blocks are released beside them")
                if ours.made is None or theirs.made is None:
                    continue
                names.add(ours.made, theirs.made)
        for our, their in names.of.items():
            # What blocks let go of may be theirs: the first that is fetched for them, say.
            if our not in self._let_go_by_blocks and not _about(common.size(our), blocks.size(their)):
                raise NotAlike("other sizes are made beside blocks")
        ours_arrive = [(names.of[slot], *told) for slot, *told in common.arrivals(common.beside)]
        if sorted(ours_arrive) != blocks.arrivals(blocks.beside):
            raise NotAlike("other gradients arrive beside blocks")

    def _leave_to_blocks(self, slots: Iterable[int]) -> None:
        """Note what the blocks of `blocks` alone keep, of what is made before them. Raises NotAlike."""
        for slot in slots:
            if self._blocks_of.back.get(slot) not in self._rest_of.of or slot not in self._released_within:
                raise NotAlike("less is released beside blocks")
            self._left.add(slot)

    def _match_groups(self) -> None:
        """Find the groups in `rest`. Raises NotAlike where one is not released in one row there."""
        for number, (members, _) in enumerate(self._groups):
            for slot in members:
                if slot not in self._rest_of.of:
                    raise NotAlike("blocks make other things")
                self._group[self._rest_of.of[slot]] = number
        for span in self._rest.stretches():
            for row in self._rest.rows(span):
                found = {self._group.get(slot) for slot in row.released if slot in self._rest.within}
                if None in found:
                    raise NotAlike("other things of blocks are released beside them")
                of_row = {self._rest_of.back[slot] for slot in row.released if slot in self._rest.within}
                for group in found:
                    if group is not None and not self._groups[group][0] <= of_row:
                        raise NotAlike("what blocks made is released in parts")

    def _append_beside(self, span: Span) -> None:
        start, end = span
        ends = {position for position, phase in self._rest.step.marks if phase == "backward"}
        for position in range(start, end):
            if position in ends:
                self._events.extend(~slot for slot in self._at_the_end_of_forward)
            self._moved[position] = len(self._events)
            event = self._rest.step.events[position]
            slot = event if event >= 0 else ~event
            if event >= 0:
                self._events.extend(~one for one in self._anchored.get(slot, ()))
            if slot in self._rest.within:
                number = self._group[slot]
                if number not in self._told:
                    self._told.add(number)
                    self._events.extend(~one for one in self._groups[number][1])
                continue
            slot = self._beside(slot)
            if event >= 0 or slot not in self._left:
                self._events.append(slot if event >= 0 else ~slot)
        self._moved[end] = len(self._events)

    def _beside(self, slot: int) -> int:
        """Return what a slot of `rest` is in the result that no block made."""
        if slot not in self._rest.beside:
            return slot  # built before
        common = self._rest_of.back.get(slot)
        theirs = None if common is None else self._blocks_of.of.get(common)
        # What blocks let go of has to be what they make it.
        if theirs is not None and (common in self._let_go_by_blocks or theirs in self._released_within):
            return theirs
        return self._new(slot)

    def _append_block(self, key: Key) -> Span:
        begin = len(self._events)
        for event in self._blocks.step.events[slice(*self._blocks.passes[key])]:
            slot = event if event >= 0 else ~event
            # What is made beside blocks is theirs to release only where that is known of the others.
            if slot in self._blocks.beside and self._blocks_of.back.get(slot) not in self._rest_of.of:
                raise NotAlike("blocks release what has no counterpart")
            self._events.append(event)
        return begin, len(self._events)

    def _at(self, position: int) -> int:
        if position not in self._moved:
            raise NotAlike("within blocks something happens that is not theirs")
        return self._moved[position]

    def _arrived(self, spans: dict[Key, Span]) -> list[Accumulated]:
        found = [
            entry._replace(position=self._at(entry.position), slot=self._beside(entry.slot))
            for entry in self._rest.step.accumulated
            if entry.slot in self._rest.beside
        ]
        for entry in self._blocks.step.accumulated:
            key = self._blocks.within.get(entry.slot)
            if key is None:
                continue
            start, end = self._blocks.passes[key]
            if not start <= entry.position <= end:
                raise NotAlike("a gradient of a block arrives elsewhere")
            found.append(entry._replace(position=spans[key][0] + entry.position - start))
        if len(found) != len(self._blocks.step.accumulated):
            raise NotAlike("other gradients arrive")
        return sorted(found, key=lambda entry: entry.position)


def _about(ours: tuple[int, int, int], theirs: tuple[int, int, int]) -> bool:
    """Tell whether sizes are the same but for rounding: bits of a mask, say, are found at another micro-batch."""
    return ours[2] == theirs[2] and abs(ours[0] - theirs[0]) <= ROUNDING and abs(ours[1] - theirs[1]) <= 1


def _check(events: Sequence[int]) -> None:
    """Raise NotAlike where something is made while it is there, or released while it is not."""
    made, alive = set(made_in(events)), set[int]()
    for event in events:
        if event >= 0:
            if event in alive:
                raise NotAlike("something is made twice")
            alive.add(event)
        elif ~event in made:
            if ~event not in alive:
                raise NotAlike("something is released twice")
            alive.discard(~event)
