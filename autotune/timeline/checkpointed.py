"""The timeline of a training with another number of checkpointed blocks than was traced.

A model's first blocks are checkpointed and the others not (`checkpointed_blocks`), and of either sort all do the same
but for the first and the last, which have other neighbours. So a trace with some blocks of both sorts tells what any
number of them allocate and release: each block of the result does what one of its sort and place did, told by where it
stands ("releases what the block before it made third in its forward"). Nothing is estimated: sizes, order and the work
of operators are those that a trace of that number would find.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from autotune.outcome import Phase
from autotune.timeline.depth import NotAlike, Pass, Spans
from autotune.timeline.op_counts import Counts, OpCounts
from autotune.timeline.step_events import Accumulated, Slots, StepEvents, survivors
from autotune.timeline.timeline import Timeline
from autotune.timeline.traced_blocks import BlockWork, TracedBlocks

LEAST = 4
"""Blocks of each sort that a trace needs: a first one, a last one, and two in between that are compared."""
EDGES = 2
"""Blocks of each sort that there are in a result at least: a first one and a last one."""
REACH = 2
"""How many blocks away another may be that a block releases something of."""


def numbers_covered(timeline: Timeline) -> range:
    """Return which numbers of checkpointed blocks `with_checkpointed` can be asked for; none where blocks are few."""
    blocks = timeline.blocks
    if blocks is None or timeline.several is not None:
        return range(0)
    count = len(blocks.names)
    if not LEAST <= blocks.checkpointed <= count - LEAST:
        return range(0)
    return range(EDGES, count - EDGES + 1)


def with_checkpointed(timeline: Timeline, count: int) -> Timeline:
    """Return the timeline with `count` checkpointed blocks.

    Raises NotAlike where blocks of a sort differ, or something beside them depends on their number.
    """
    blocks = timeline.blocks
    assert count in numbers_covered(timeline), f"{count} blocks cannot be put together"
    assert blocks is not None
    if count == blocks.checkpointed:
        return timeline
    order = _Order(blocks.checkpointed, count, len(blocks.names))
    slots = timeline.slots.copy()
    modules = _Modules(timeline.modules, blocks.names)
    released = {
        ~event for part in (timeline.first_update, timeline.update) for event in part.events if event < 0
    }
    micro, micro_spans = _Reordering(timeline.micro, blocks.micro, blocks, order, slots, modules).run(
        released
    )
    single, single_spans = timeline.single, blocks.single
    if single is not None:
        if single_spans is None:
            raise NotAlike("the blocks of a single sample were not noted")
        single, single_spans = _Reordering(single, single_spans, blocks, order, slots, modules).run(set())
    return replace(
        timeline,
        slots=slots, modules=modules.names, micro=micro, single=single,
        work=None if timeline.work is None else _work(timeline.work, blocks, count - blocks.checkpointed),
        blocks=replace(blocks, checkpointed=count, micro=micro_spans, single=single_spans),
        facts={**timeline.facts, "composed_of": blocks.checkpointed},
    )  # fmt: skip


class _Order(NamedTuple):
    """Which traced block stands for which of the result."""

    traced: int
    """Checkpointed blocks of the trace."""
    wanted: int
    """Those of the result."""
    blocks: int

    def sorts(self, checkpointed: int) -> tuple[range, range]:
        """Return the numbers of the checkpointed blocks, and of the others."""
        return range(checkpointed), range(checkpointed, self.blocks)

    def template(self, number: int) -> int:
        """Return the traced block that does what a block of the result does: the first, the last, or one between."""
        sort = int(number >= self.wanted)
        ours, theirs = self.sorts(self.wanted)[sort], self.sorts(self.traced)[sort]
        if number == ours[0]:
            return theirs[0]
        if number == ours[-1]:
            return theirs[-1]
        return number if number in theirs[1:-1] else theirs[1]


class _Modules:
    """Names of modules, for blocks that do what another did."""

    def __init__(self, names: Sequence[str], blocks: Sequence[str]) -> None:
        self.names = list(names)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._blocks = blocks

    def of(self, module: int, template: int, number: int) -> int:
        """Return the module of block `number` that stands where `module` does in block `template`."""
        name, own = self.names[module], self._blocks[template]
        if name != own and not name.startswith(f"{own}."):
            return module
        return self._numbers.get(f"{self._blocks[number]}{name[len(own) :]}", module)


class _Made(NamedTuple):
    """Where an allocation of a block stands."""

    during: Pass
    block: int
    order: int
    """Among the allocations of that pass of that block."""


def _followed(spans: Spans, events: Sequence[int]) -> Spans:
    """Return the spans with what is released right behind the last block, of its own and of the one before, in its own.

    A model lets go of a block's input when it has its output: of the last block's behind the block.
    """
    (begin, _), (start, end) = spans.forward[-2:]
    own = {event for event in events[begin:end] if event >= 0}
    while end < len(events) and ~events[end] in own:
        end += 1
    return Spans([*spans.forward[:-1], (start, end)], spans.backward)


class _Reordering:
    """One micro-step, put together anew."""

    def __init__(
        self, micro: StepEvents, spans: Spans, blocks: TracedBlocks, order: _Order, slots: Slots, modules: _Modules
    ) -> None:  # fmt: skip
        self._micro, self._order, self._slots, self._modules = micro, order, slots, modules
        self._spans = spans = _followed(spans, micro.events)
        self._parameters = blocks.parameters
        self._made: dict[int, _Made] = {}
        self._own: dict[tuple[Pass, int], list[int]] = {}
        for during, block, (start, end) in spans.passes():
            own = [event for event in micro.events[start:end] if event >= 0]
            self._own[during, block] = own
            self._made |= {slot: _Made(during, block, position) for position, slot in enumerate(own)}
        self._gradients: dict[int, int] = {}  # slot -> which of its block's parameters it is the gradient of
        self._arrived: dict[int, list[Accumulated]] = defaultdict(list)
        for entry in micro.accumulated:
            if (made := self._made.get(entry.slot)) is None:
                continue
            if made.during != "backward" or entry.parameter not in self._parameters[made.block]:
                raise NotAlike(f"block {made.block} has the gradient of a parameter that is not its own")
            self._gradients[entry.slot] = self._parameters[made.block].index(entry.parameter)
            self._arrived[made.block].append(entry)
        self._gradient_of = {(self._made[slot].block, which): slot for slot, which in self._gradients.items()}
        self._copies: dict[_Made, int] = {}

    def run(self, released: set[int]) -> tuple[StepEvents, Spans]:
        """Return the micro-step with the spans of its blocks; `released` are the slots that optimizer steps release."""
        self._compare()
        left = {slot for slot in (*survivors(self._micro), *released) if slot in self._made}
        if not left <= set(self._gradients):
            raise NotAlike("something of a block outlives the micro-step that is no gradient")
        result = StepEvents()
        moved: dict[int, int] = {}  # new position of what lies outside of blocks
        spans: dict[tuple[Pass, int], tuple[int, int]] = {}
        done = 0
        for during in ("forward", "backward"):
            places = [span for name, _, span in self._spans.passes() if name == during]
            self._outside(done, places[0][0], result, moved)
            numbers = range(self._order.blocks)
            for number in numbers if during == "forward" else reversed(numbers):
                begin = len(result.events)
                self._block(during, number, result)
                spans[during, number] = begin, len(result.events)
            done = places[-1][1]
        self._outside(done, len(self._micro.events), result, moved)
        result.marks.extend((self._at(moved, position), phase) for position, phase in self._micro.marks)
        result.accumulated.extend(
            entry._replace(position=self._at(moved, entry.position))
            for entry in self._micro.accumulated
            if entry.slot not in self._made
        )
        result.accumulated.sort(key=lambda entry: entry.position)
        count = range(self._order.blocks)
        return result, Spans(
            [spans["forward", one] for one in count], [spans["backward", one] for one in count]
        )

    def _at(self, moved: dict[int, int], position: int) -> int:
        if position not in moved:
            raise NotAlike("within a block something happens that is not its own")
        return moved[position]

    def _compare(self) -> None:
        """Raise NotAlike unless the blocks of a sort make the same, and those in its middle do the same with it."""
        for sort in self._order.sorts(self._order.traced):
            for during in ("forward", "backward"):
                made = [self._sizes(self._own[during, block]) for block in sort]
                # Where nothing before the blocks trains, the model's first has no gradient to give on.
                if during == "backward" and sort[0] == 0 and made[0] != made[1]:
                    self._check_own(0)
                    made = made[1:]
                if any(one != made[0] for one in made):
                    raise NotAlike(f"the blocks make different things in {during}")
                does = [self._relative(during, block) for block in sort[1:-1]]
                if any(one != does[0] for one in does):
                    raise NotAlike(f"the blocks do different things in {during}")
        for which in range(len(self._parameters[0])):
            gradients = [self._gradient_of.get((block, which)) for block in range(self._order.blocks)]
            if len(set(self._sizes(gradients))) > 1:
                raise NotAlike("the blocks' parameters have different gradients")

    def _check_own(self, block: int) -> None:
        """Raise NotAlike where anything else releases what a block makes in its backward."""
        own = set(self._own["backward", block]) - set(self._gradients)
        start, end = self._spans.of("backward", block)
        if any(~event in own for event in (*self._micro.events[:start], *self._micro.events[end:])):
            raise NotAlike(f"what block {block} makes in backward is released elsewhere")

    def _sizes(self, slots: Sequence[int | None]) -> list[tuple[int, int, int] | None]:
        return [None if slot is None else self._slots.size(slot) for slot in slots]

    def _relative(self, during: Pass, block: int) -> list[object]:
        """Return what a block does, told by where it stands."""
        told: list[object] = []
        start, end = self._spans.of(during, block)
        for event in self._micro.events[start:end]:
            made = self._made.get(event if event >= 0 else ~event)
            if made is None:
                raise NotAlike(f"block {block} releases in {during} what was made outside of blocks")
            told.append((event >= 0, made.during, made.block - block, made.order))
        if during == "backward":
            told += [
                (
                    entry.position - start,
                    self._made[entry.slot].order,
                    self._gradients[entry.slot],
                    entry.copied,
                )
                for entry in self._arrived[block]
            ]
        return told

    def _block(self, during: Pass, number: int, result: StepEvents) -> None:
        """Append what a block of the result does."""
        template = self._order.template(number)
        start, end = self._spans.of(during, template)
        begin = len(result.events)
        for event in self._micro.events[start:end]:
            slot = event if event >= 0 else ~event
            made = self._made.get(slot)
            if made is not None:
                away = made.block - template
                if abs(away) > REACH:
                    raise NotAlike(f"block {template} releases in {during} what block {made.block} made")
                slot = self._slot(_Made(made.during, number + away, made.order))
            result.events.append(slot if event >= 0 else ~slot)
        if during == "backward":
            own = self._parameters[number]
            result.accumulated.extend(
                Accumulated(
                    begin + entry.position - start,
                    own[self._gradients[entry.slot]],
                    self._slot(self._made[entry.slot]._replace(block=number)),
                    entry.copied,
                )
                for entry in self._arrived[template]
            )

    def _slot(self, wanted: _Made) -> int:
        """Return the slot of an allocation of the result. Gradients keep theirs: optimizer steps release them."""
        if not 0 <= wanted.block < self._order.blocks:
            raise NotAlike(f"a block reaches for block {wanted.block}, which there is not")
        template = self._order.template(wanted.block)
        own = self._own[wanted.during, template]
        if wanted.order >= len(own):
            raise NotAlike(f"block {wanted.block} makes less in {wanted.during} than another")
        slot = own[wanted.order]
        if template == wanted.block:
            return slot
        if slot in self._gradients:
            return self._gradient_of[wanted.block, self._gradients[slot]]
        if wanted not in self._copies:
            module = self._modules.of(self._slots.module[slot], template, wanted.block)
            self._copies[wanted] = self._slots.add(self._slots, slot, module)
        return self._copies[wanted]

    def _outside(self, start: int, end: int, result: StepEvents, moved: dict[int, int]) -> None:
        """Append what happens between blocks, with what it releases of all of a sort."""
        releasing: list[int] = []
        for position in range(start, end):
            event = self._micro.events[position]
            moved[position] = len(result.events)
            if event < 0 and ~event in self._made:
                releasing.append(~event)
                continue
            if event >= 0:  # releases in a row are in no order that matters
                result.events.extend(~slot for slot in self._released(releasing))
                moved[position] = len(result.events)
                releasing = []
            result.events.append(event)
        result.events.extend(~slot for slot in self._released(releasing))
        moved[end] = len(result.events)

    def _released(self, slots: Sequence[int]) -> Iterator[int]:
        """Yield what is released of the blocks of the result, where of the traced ones `slots` were, in a row."""
        told: dict[tuple[int, Pass, int], set[int]] = defaultdict(set)
        for slot in slots:
            made = self._made[slot]
            told[int(made.block >= self._order.traced), made.during, made.order].add(made.block)
        for (sort, during, order), those in told.items():
            theirs = self._order.sorts(self._order.traced)[sort]
            ours = self._order.sorts(self._order.wanted)[sort]
            middle = those & set(theirs[1:-1])
            if middle and len(middle) < len(theirs) - EDGES:
                raise NotAlike("beside the blocks something is released of some of them")
            numbers = [
                *(ours[:1] if theirs[0] in those else ()),
                *(ours[1:-1] if middle else ()),
                *(ours[-1:] if theirs[-1] in those else ()),
            ]
            for number in numbers:
                yield self._slot(_Made(during, number, order))


def _work(work: OpCounts, blocks: TracedBlocks, more: int) -> OpCounts | None:
    """Return the operators with `more` checkpointed blocks, and as many others fewer."""
    if blocks.work is None:
        return None

    def changed(
        phases: dict[Phase, Counts], own: Callable[[BlockWork], dict[Phase, Counts]]
    ) -> dict[Phase, Counts]:
        assert blocks.work is not None
        checkpointed, other = own(blocks.work.checkpointed), own(blocks.work.other)
        found: dict[Phase, Counts] = {}
        for phase, counts in phases.items():
            totals = dict(counts)
            for index, count in checkpointed.get(phase, []):
                totals[index] = totals.get(index, 0) + more * count
            for index, count in other.get(phase, []):
                totals[index] = totals.get(index, 0) - more * count
            if any(count < 0 for count in totals.values()):
                raise NotAlike("blocks compute different things")
            found[phase] = [(index, count) for index, count in totals.items() if count]
        return found

    single = None if work.single is None else changed(work.single, lambda own: own.single)
    return replace(work, micro=changed(work.micro, lambda own: own.micro), single=single)
