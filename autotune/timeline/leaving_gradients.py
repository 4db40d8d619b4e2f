"""The passes of a training whose gradients go elsewhere one by one, from those of one where they stay.

`offload: gradients` changes of forward and backward only that a gradient is copied to the host as soon as it is
complete, and let go of; DDP that it is added to its part of a bucket, and let go of. Where each is complete a timeline
knows. That nothing else differs is not taken on trust: what is put together of one candidate's passes has to be what a
trace of that candidate with the offload, or with DDP, shows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from autotune.timeline.depth import Span, Spans
from autotune.timeline.op_difference import Difference, added, difference
from autotune.timeline.recent import Recent
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
    return _elsewhere(passes, plain, donor, in_place=False)


def gradients_in_buckets(passes: Timeline, plain: Timeline, donor: Timeline) -> Leaving | None:
    """Return `passes` and `plain` with gradients that are added to buckets; None where that does not give `donor`'s.

    `donor` is the trace of what `plain` is, under DDP. The optimizer steps stay as they are.
    """
    return _elsewhere(passes, plain, donor, in_place=True)


class _Shown(NamedTuple):
    """That a donor does what a plain training does, but for its gradients."""

    plain: Timeline
    """With gradients elsewhere."""
    begun: list[_Begun]
    """What the donor makes and releases before its blocks beside that."""
    whole: Timeline
    """`plain` with it."""
    more: Difference
    """What the donor computes beyond the plain training."""


class _Begun(NamedTuple):
    """What is made and released at once in the beginning of a micro-step."""

    name: str
    """`micro` or `single`."""
    at: int
    stretch: list[int]


def _elsewhere(passes: Timeline, plain: Timeline, donor: Timeline, in_place: bool) -> Leaving | None:
    shown = _SHOWN.of(plain, donor, in_place)
    if shown is None or passes.work is None:
        return None
    gone = _GONE.of(passes, passes, in_place)
    for name, at, _ in shown.begun:
        ours, others = getattr(shown.plain, name), getattr(gone, name)
        if others is not None and _alike_until(shown.plain, ours, gone, others) < at:
            return None
    for name, at, stretch in shown.begun:
        if getattr(gone, name) is not None:
            gone = _with(gone, name, at, stretch, donor)
    work = added(passes.work, shown.more)
    return None if work is None else Leaving(replace(gone, work=work), shown.whole)


def _shown(plain: Timeline, donor: Timeline, in_place: bool) -> _Shown | None:
    """Return what shows that a donor is a plain training but for its gradients; None where it is another."""
    if plain.work is None or donor.work is None:
        return None
    ours = _GONE.of(plain, plain, in_place)
    begun = _begun(ours, donor) if in_place else []  # DDP sends buffers to all ranks before forward
    if begun is None:
        return None
    whole = ours
    for name, at, stretch in begun:
        whole = _with(whole, name, at, stretch, donor)
    if not (
        _same(whole, whole.micro, donor, donor.micro) and _same(whole, whole.single, donor, donor.single)
    ):
        return None
    more = difference(plain.work, donor.work)
    return None if more is None else _Shown(ours, begun, whole, more)


def _begun(plain: Timeline, donor: Timeline) -> list[_Begun] | None:
    """Return what `donor` makes and releases at once before its blocks, and `plain` does not.

    None where it is not there alone that more is made.
    """
    found = []
    for name in ("micro", "single"):
        ours, theirs = (getattr(timeline, name) for timeline in (plain, donor))
        if ours is None or theirs is None:
            continue
        more = len(theirs.events) - len(ours.events)
        if not more:
            continue
        at = _alike_until(plain, ours, donor, theirs)
        stretch = theirs.events[at : at + more]
        made = [event for event in stretch if event >= 0]
        if more < 0 or {*made} != {~event for event in stretch if event < 0}:
            return None
        found.append(_Begun(name, at, stretch))
    return found


def _alike_until(one: Timeline, ours: StepEvents, other: Timeline, theirs: StepEvents) -> int:
    """Return how many events two stretches begin with that make and release the same."""
    names: dict[int, int] = {}
    for position, (our, their) in enumerate(zip(ours.events, theirs.events, strict=False)):
        if our >= 0 and their >= 0 and one.slots.size(our) == other.slots.size(their):
            names[our] = their
        elif our >= 0 or their >= 0 or names.get(~our) != ~their:
            return position
    return min(len(ours.events), len(theirs.events))


def _with(timeline: Timeline, name: str, at: int, stretch: list[int], donor: Timeline) -> Timeline:
    """Return a timeline with more events in one of its micro-steps, whose slots are a donor's."""
    slots = timeline.slots.copy()
    names = {slot: slots.add(donor.slots, slot, 0) for slot in stretch if slot >= 0}
    own: StepEvents = getattr(timeline, name)
    events = [
        *own.events[:at],
        *(names[one] if one >= 0 else ~names[~one] for one in stretch),
        *own.events[at:],
    ]
    moved = [place if place < at else place + len(stretch) for place in range(len(own.events) + 1)]
    moved[0] = 0  # the phase begins in front of it
    step = StepEvents(events, [(moved[position], phase) for position, phase in own.marks])
    blocks = timeline.blocks
    if blocks is not None and getattr(blocks, name) is not None:
        spans: dict[str, Any] = {name: _spans(getattr(blocks, name), moved)}
        blocks = replace(blocks, **spans)
    changed: dict[str, Any] = {name: step}
    return replace(timeline, slots=slots, blocks=blocks, **changed)


def _leaving(timeline: Timeline, _: Timeline, in_place: bool) -> Timeline:
    """Return a timeline with gradients that go elsewhere as they arrive."""
    micro, moved = _moved(timeline.micro, in_place)
    single, moved_alone = (None, []) if timeline.single is None else _moved(timeline.single, in_place)
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


def _moved(segment: StepEvents, in_place: bool) -> tuple[StepEvents, list[int]]:
    """Return a micro-step that releases each gradient where it arrives, and where each of its events stands now.

    What is added `in_place` to something there is not copied first (`step_events.into_existing`).
    """
    copied = {entry.slot for entry in segment.accumulated if entry.copied} if in_place else set()
    # Of views of one storage the last.
    arrives = {entry.slot: entry.position for entry in segment.accumulated if entry.slot not in copied}
    leaving: dict[int, list[int]] = defaultdict(list)
    for slot, position in arrives.items():
        leaving[position].append(slot)
    events: list[int] = []
    moved: list[int] = []
    done = 0
    # Between arrivals, and what is not copied any more, nothing changes.
    taken_out = [position for position, event in enumerate(segment.events) if event in copied]
    for position in sorted({*leaving, *taken_out}):
        moved.extend(range(len(events), len(events) + position - done))
        events += segment.events[done:position]
        events += [~slot for slot in leaving.get(position, ())]
        moved.append(len(events))
        if position < len(segment.events) and segment.events[position] not in copied:
            events.append(segment.events[position])
        done = position + 1
    moved.extend(range(len(events), len(events) + len(segment.events) + 1 - done))
    events += segment.events[done:]
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
        told += [tuple(sorted(row)), slots.size(event)]
        row = []
    return [*told, tuple(sorted(row)), [phase for _, phase in segment.marks]]


_GONE = Recent(_leaving)
_SHOWN = Recent(_shown)
