"""A timeline whose repeated blocks are those of one training, and whose rest (embedding, norm, loss) is another's.

What a loss allocates does not depend on how blocks come to their results, nor blocks on how the loss is made of them.
So losses are traced over one way to run blocks, ways to run blocks under one loss, and the others are put together of
three traces: `rest` has the loss and `blocks` the blocks that are wanted, and `common` the blocks of the one and the
loss of the other, so that it shows what in one is what in the other. Nothing is taken on trust: where the blocks of
`common` are not to the byte those of `rest`, or its loss not that of `blocks` but for the rounding of a few bytes,
there is no answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autotune.candidate import Candidate
from autotune.timeline.common_blocks import CommonBlocks
from autotune.timeline.depth import NotAlike
from autotune.timeline.divided_step import DividedStep
from autotune.timeline.joined_step import joined_step
from autotune.timeline.op_difference import added, difference
from autotune.timeline.recent import Recent
from autotune.timeline.step_events import Slots, StepEvents, renamed, survivors
from autotune.timeline.timeline import Timeline


def joined(candidate: Candidate, common: Timeline, rest: Timeline, blocks: Timeline) -> Timeline | None:
    """Return the timeline of a candidate that has the blocks of `blocks`, and all else of its passes of `rest`.

    `common` has the blocks of `rest` and all else of `blocks`; the optimizer of the three is the same, and that of the
    result. None where they do not fit together to the byte, or one was traced for one micro-batch alone.
    """
    timelines = common, rest, blocks
    if not all(_joinable(one) for one in timelines) or not _same_build(timelines):
        return None
    assert common.work is not None and rest.work is not None and blocks.work is not None  # noqa: PT018 - joinable
    more = difference(common.work, rest.work)
    work = None if more is None else added(blocks.work, more)
    if work is None:
        return None
    slots = _Slots(rest, blocks)
    try:
        micro, spans = joined_step(_COMMON.of(common, rest, False), _divided(blocks, False), slots.of_rest)
        single, alone = None, None
        if blocks.single is not None:
            single, alone = joined_step(_COMMON.of(common, rest, True), _divided(blocks, True), slots.of_rest)
    except NotAlike:
        return None
    if not _leave_the_same(blocks, slots.slots, micro):
        return None
    names = renamed(blocks.micro, micro)
    assert blocks.blocks is not None
    return replace(
        blocks,
        slots=slots.slots, modules=slots.modules, micro=micro, single=single,
        first_update=_renamed(blocks.first_update, names), update=_renamed(blocks.update, names),
        work=replace(work, note=blocks.work.note or rest.work.note),
        blocks=replace(blocks.blocks, micro=spans, single=alone),
        facts={
            **blocks.facts,
            "rung": candidate.rung().key(),
            "rest_of": rest.facts.get("rung", ""),
            "blocks_of": blocks.facts.get("rung", ""),
            "seconds": 0.0,
        },
    )  # fmt: skip


def _joinable(timeline: Timeline) -> bool:
    return (
        timeline.blocks is not None
        and timeline.exact is None
        and timeline.several is None
        and timeline.evaluation is None
        and timeline.micro_steps == 1
        and timeline.work is not None
    )


def _same_build(timelines: Iterable[Timeline]) -> bool:
    """Tell whether builds make the same, under the same numbers."""
    first, *others = timelines
    made = [event for event in first.build.events if event >= 0]
    return all(
        other.build.events == first.build.events
        and all(other.slots.size(slot) == first.slots.size(slot) for slot in made)
        for other in others
    )


class _Slots:
    """The slots of `blocks`, and those that `rest` makes beside blocks."""

    def __init__(self, rest: Timeline, blocks: Timeline) -> None:
        self.slots = blocks.slots.copy()
        self.modules = list(blocks.modules)
        self._rest = rest
        self._numbers = {name: number for number, name in enumerate(self.modules)}
        self._new: dict[int, int] = {}

    def of_rest(self, slot: int) -> int:
        """Return the number of a slot of `rest`, which it gets now unless it has one."""
        if slot not in self._new:
            name = self._rest.modules[self._rest.slots.module[slot]]
            if name not in self._numbers:
                self._numbers[name] = len(self.modules)
                self.modules.append(name)
            self._new[slot] = self.slots.add(self._rest.slots, slot, self._numbers[name])
        return self._new[slot]


def _divided(timeline: Timeline, single: bool) -> DividedStep:
    step = timeline.single if single else timeline.micro
    assert timeline.blocks is not None, "joinable timelines know their blocks"
    spans = timeline.blocks.single if single else timeline.blocks.micro
    if step is None or spans is None:
        raise NotAlike("where blocks lie is not known")
    return DividedStep(timeline.slots, step, spans)


def _common(common: Timeline, rest: Timeline, single: bool) -> CommonBlocks:
    return CommonBlocks(_divided(common, single), _divided(rest, single))


def _leave_the_same(blocks: Timeline, slots: Slots, micro: StepEvents) -> bool:
    """Tell whether a micro-step leaves what that of `blocks` leaves, which is what the optimizer steps release."""
    ours, theirs = ({entry.slot for entry in step.accumulated} for step in (blocks.micro, micro))
    left, others = survivors(blocks.micro), survivors(micro)
    if (
        len(left) != len(others)
        or len(ours.intersection(left)) != len(theirs.intersection(others))
        or sorted(entry.parameter for entry in blocks.micro.accumulated)
        != sorted(entry.parameter for entry in micro.accumulated)
    ):
        return False
    names = renamed(blocks.micro, micro)
    return all(blocks.slots.size(our) == slots.size(their) for our, their in names.items())


def _renamed(segment: StepEvents, names: dict[int, int]) -> StepEvents:
    events = [event if event >= 0 else ~names.get(~event, ~event) for event in segment.events]
    return StepEvents(events, segment.marks)


_COMMON = Recent(_common, remembered=16)
"""One loss is joined with many ways to run blocks, as traces come: gpt2-xl's ladder has eight pairs, each twice."""
