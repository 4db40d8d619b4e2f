"""The passes of a training whose gradients leave the device one by one, from those of one where they stay.

`offload: gradients` changes of forward and backward only that a gradient is copied to the host as soon as it is
complete, and let go of. Where each is complete a timeline knows. That nothing else differs is not taken on trust: what
is put together of one candidate's passes has to be what a trace of that candidate with the offload shows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from autotune.outcome import Phase
from autotune.timeline.depth import Span, Spans
from autotune.timeline.op_counts import Counts, OpCounts, Operators
from autotune.timeline.step_events import CATEGORIES, Slots, StepEvents
from autotune.timeline.timeline import Timeline


class Leaving(NamedTuple):
    """Two timelines whose gradients leave the device."""

    passes: Timeline
    plain: Timeline


def leaving_gradients(passes: Timeline, plain: Timeline, donor: Timeline) -> Leaving | None:
    """Return `passes` and `plain` with gradients that leave the device; None where that does not give `donor`'s.

    `donor` is the trace of what `plain` is, with gradients that leave. The optimizer steps stay as they are.
    """
    shown = _leaving(plain)
    if not (
        _same(shown, shown.micro, donor, donor.micro) and _same(shown, shown.single, donor, donor.single)
    ):
        return None
    if passes.work is None or plain.work is None or donor.work is None:
        return None
    more = _more(plain.work, donor.work)
    return None if more is None else Leaving(replace(_leaving(passes), work=_with(passes.work, more)), shown)


def _leaving(timeline: Timeline) -> Timeline:
    micro, moved = _moved(timeline.micro)
    single, moved_alone = (None, []) if timeline.single is None else _moved(timeline.single)
    category = list(timeline.slots.category)
    for segment in (timeline.micro, timeline.single):
        if segment is None:
            continue
        backward = next((position for position, phase in segment.marks if phase == "backward"), 0)
        # A loss may make gradients in forward, for backward to hand on.
        ready = set(segment.events[:backward])
        for entry in segment.accumulated:
            category[entry.slot] = CATEGORIES.index("activation" if entry.slot in ready else "temporary")
    blocks = timeline.blocks
    if blocks is not None:
        alone = None if blocks.single is None else _spans(blocks.single, moved_alone)
        blocks = replace(blocks, micro=_spans(blocks.micro, moved), single=alone)
    slots = replace(timeline.slots, category=category)
    return replace(timeline, slots=slots, micro=micro, single=single, blocks=blocks)


def _moved(segment: StepEvents) -> tuple[StepEvents, list[int]]:
    """Return a micro-step that releases each gradient where it arrives, and where each of its events stands now."""
    # Of views of one storage the last.
    arrives = {entry.slot: entry.position for entry in segment.accumulated}
    leaving: dict[int, list[int]] = defaultdict(list)
    for slot, position in arrives.items():
        leaving[position].append(slot)
    events: list[int] = []
    moved = []
    for position in range(len(segment.events) + 1):
        events.extend(~slot for slot in leaving[position])
        moved.append(len(events))
        events.extend(segment.events[position : position + 1])
    return StepEvents(events, [(moved[position], phase) for position, phase in segment.marks]), moved


def _spans(spans: Spans, moved: list[int]) -> Spans:
    def of(those: Iterable[Span]) -> list[Span]:
        return [(moved[start], moved[end]) for start, end in those]

    return Spans(of(spans.forward), of(spans.backward))


def _same(ours: Timeline, our: StepEvents | None, theirs: Timeline, their: StepEvents | None) -> bool:
    """Tell whether two stretches make and release the same; what they release in a row is in no certain order."""
    if our is None or their is None:
        return our is their
    return _told(our, ours.slots) == _told(their, theirs.slots)


def _told(segment: StepEvents, slots: Slots) -> list[object]:
    names: dict[int, int] = {}
    told: list[object] = []
    row: list[int] = []
    for event in segment.events:
        if event < 0:
            row.append(names.get(~event, -1))
            continue
        names[event] = len(names)
        told += [tuple(sorted(row)), (slots.base[event], slots.slope[event], slots.place[event])]
        row = []
    return [*told, tuple(sorted(row)), [phase for _, phase in segment.marks]]


_Fact = tuple[object, ...]
"""All that a timeline knows of an operator."""
_More = dict[str, dict[Phase, Counter[_Fact]]]


def _facts(work: OpCounts, counts: Counts) -> Counter[_Fact]:
    lists = list(vars(work.operators).values())
    found: Counter[_Fact] = Counter()
    for index, count in counts:
        found[tuple(values[index] for values in lists)] += count
    return found


def _more(plain: OpCounts, donor: OpCounts) -> _More | None:
    """Return what the passes of `donor` do beyond those of `plain`; None where they do something less."""
    more: _More = {}
    for name in ("micro", "single"):
        ours, theirs = getattr(plain, name), getattr(donor, name)
        if ours is None or theirs is None:
            if ours is not theirs:
                return None
            continue
        more[name] = {}
        for phase in {**ours, **theirs}:
            beyond = _facts(donor, theirs.get(phase, []))
            beyond.subtract(_facts(plain, ours.get(phase, [])))
            if any(count < 0 for count in beyond.values()):
                return None
            more[name][phase] = +beyond
    return more


def _with(work: OpCounts, more: _More) -> OpCounts:
    """Return the operators with more of them."""
    operators = Operators(**{name: list(values) for name, values in vars(work.operators).items()})
    lists = list(vars(operators).values())
    known = {fact: index for index, fact in enumerate(zip(*lists, strict=True))}

    def number(fact: _Fact) -> int:
        if fact not in known:
            known[fact] = len(known)
            for values, value in zip(lists, fact, strict=True):
                values.append(value)
        return known[fact]

    def added(name: str) -> dict[Phase, Counts] | None:
        phases: dict[Phase, Counts] | None = getattr(work, name)
        if phases is None:
            return None
        found: dict[Phase, Counts] = {}
        for phase in {**phases, **more.get(name, {})}:
            totals = dict(phases.get(phase, []))
            for fact, count in more.get(name, {}).get(phase, {}).items():
                index = number(fact)
                totals[index] = totals.get(index, 0) + count
            found[phase] = list(totals.items())
        return found

    micro = added("micro")
    assert micro is not None, "every trace has a micro-step"
    return replace(work, operators=operators, micro=micro, single=added("single"))
