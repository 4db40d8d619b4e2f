"""A timeline composed of others: the forward and backward of one, with the optimizer of another.

What an optimizer makes and takes depends on the parameters and their gradients, and not on how a block came to these.
So an optimizer is traced over one candidate's passes, and holds for those of all that have the same gradients.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.candidate import Candidate
from autotune.timeline.leaving_gradients import gradients_in_buckets, leaving_gradients
from autotune.timeline.op_counts import OpCounts, Operators
from autotune.timeline.step_events import Slots, StepEvents, renamed, survivors
from autotune.timeline.timeline import Timeline


def with_optimizer(
    candidate: Candidate, passes: Timeline, plain: Timeline, donor: Timeline
) -> Timeline | None:
    """Return the timeline of a candidate that has the passes of `passes` and the optimizer of `donor`.

    `plain` is `donor` with the optimizer of `passes`. Passes that were traced for one micro-batch alone give a timeline
    for that one. None where the three do not fit together: passes that leave other gradients, gradients that do not
    leave the device as they arrive, a build that the optimizer changes though it is another, or an optimizer that was
    traced for one micro-batch alone. Passes of one device give those of a candidate with DDP, whose `donor` has it.
    """
    if not all(_composable(timeline) for timeline in (passes, plain, donor)):
        return None
    if plain.exact is not None or donor.exact is not None:
        return None
    into_buckets = candidate.sharding == "ddp" and passes.facts.get("sharding") == "none"
    if candidate.offload == "gradients" or into_buckets:
        leaving = (gradients_in_buckets if into_buckets else leaving_gradients)(passes, plain, donor)
        if leaving is None:
            return None
        passes, plain = leaving
    more = _more_built(plain, donor)
    if more is None or not _leave_the_same(donor.micro, passes.micro):
        return None
    at, making, plains = more
    names = renamed(donor.micro, passes.micro)
    if not _same_slots(donor.slots, passes.slots, names):
        return None
    used = dict.fromkeys(
        event if event >= 0 else ~event
        for event in (*making, *donor.first_update.events, *donor.update.events)
    )
    end = len(plain.build.events)
    if at < end or not plains.keys().isdisjoint(used):
        built = _same_build(plain, passes)  # it moves parameters, say
        if built is None:
            return None
        names = {**{slot: built[their] for slot, their in plains.items()}, **names}
    if at == end:
        at = len(passes.build.events)
    slots, modules = _joined(passes, donor, used, names)

    def moved(segment: StepEvents) -> StepEvents:
        return StepEvents([_renamed(event, names) for event in segment.events], segment.marks)

    return replace(
        passes,
        slots=slots,
        modules=modules,
        build=StepEvents(
            [*passes.build.events[:at], *moved(StepEvents(making)).events, *passes.build.events[at:]],
            passes.build.marks,
        ),
        first_update=moved(donor.first_update),
        update=moved(donor.update),
        work=_work(passes.work, donor.work),
        facts={
            **donor.facts,
            **{name: passes.facts[name] for name in ("attention", "blocks") if name in passes.facts},
            "rung": candidate.rung().key(),
            "optimizer_of": donor.facts.get("rung", ""),
            "seconds": 0.0,
        },
    )


def _composable(timeline: Timeline) -> bool:
    return (
        timeline.several is None
        and timeline.evaluation is None
        and timeline.micro_steps == 1
        and timeline.work is not None
    )


def _more_built(plain: Timeline, donor: Timeline) -> tuple[int, list[int], dict[int, int]] | None:
    """Return where in its build a donor makes what, and which of its other slots are which of `plain`.

    None where the builds differ in more than one stretch.
    """
    ours, theirs = donor.build.events, plain.build.events
    more = len(ours) - len(theirs)
    if more < 0:
        return None
    names: dict[int, int] = {}

    def same(our: int, their: int) -> bool:
        if our < 0 or their < 0:
            return our < 0 and their < 0 and names.get(~our) == ~their
        names[our] = their
        return _same_slots(donor.slots, plain.slots, {our: their})

    at = 0
    while at < len(theirs) and same(ours[at], theirs[at]):
        at += 1
    making = ours[at : at + more]
    for event in making:
        names.pop(event, None)  # it was compared with what stands behind it
    if not all(same(*pair) for pair in zip(ours[at + more :], theirs[at:], strict=True)):
        return None
    return at, making, names


def _leave_the_same(ours: StepEvents, theirs: StepEvents) -> bool:
    """Tell whether two micro-steps leave gradients of the same parameters, and as much beside them."""
    return len(survivors(ours)) == len(survivors(theirs)) and {
        entry.parameter for entry in ours.accumulated
    } == {entry.parameter for entry in theirs.accumulated}


def _same_build(ours: Timeline, theirs: Timeline) -> dict[int, int] | None:
    """Map the slots of one build to those of another; None where they differ."""
    events, others = ours.build.events, theirs.build.events
    if [event >= 0 for event in events] != [event >= 0 for event in others]:
        return None
    names = {our: their for our, their in zip(events, others, strict=True) if our >= 0}
    return names if _same_slots(ours.slots, theirs.slots, names) else None


def _same_slots(ours: Slots, theirs: Slots, names: dict[int, int]) -> bool:
    """Tell whether slots are as large as those that they are named for, and in the same place."""
    return all(ours.size(our) == theirs.size(their) for our, their in names.items())


def _joined(
    passes: Timeline, donor: Timeline, used: dict[int, None], names: dict[int, int]
) -> tuple[Slots, list[str]]:
    """Return the slots of `passes` and those that `donor` uses besides, which get their new numbers in `names`."""
    modules = list(passes.modules)
    numbers = {name: number for number, name in enumerate(modules)}
    slots = passes.slots.copy()
    for slot in used:
        if slot in names:
            continue
        name = donor.modules[donor.slots.module[slot]]
        if name not in numbers:
            numbers[name] = len(modules)
            modules.append(name)
        names[slot] = slots.add(donor.slots, slot, numbers[name])
    return slots, modules


def _renamed(event: int, names: dict[int, int]) -> int:
    return names[event] if event >= 0 else ~names[~event]


def _work(passes: OpCounts | None, donor: OpCounts | None) -> OpCounts:
    """Return the work of the passes of one and of the update of the other."""
    assert passes is not None, "composable timelines know their work"
    assert donor is not None, "composable timelines know their work"
    wanted = dict.fromkeys(index for counts in donor.update.values() for index, _ in counts)
    begin = len(passes.operators.name)
    numbers = {index: begin + order for order, index in enumerate(wanted)}
    ours, theirs = vars(passes.operators), vars(donor.operators)
    operators = Operators(**{key: [*ours[key], *(theirs[key][index] for index in wanted)] for key in ours})
    update = {
        phase: [(numbers[index], count) for index, count in counts] for phase, counts in donor.update.items()
    }
    return replace(passes, operators=operators, update=update)
