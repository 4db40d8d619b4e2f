"""A micro-step over few blocks, put back to all of them, is the one that all would have made."""

from dataclasses import dataclass, field

import pytest

from autotune.timeline.depth import LeftOutBlocks, NotAlike, Shortened, Spans, deepen, repeat
from autotune.timeline.step_events import Accumulated, StepEvents


@dataclass
class Made:
    """A micro-step as a model of some kinds of blocks makes it; slots are known by what they are."""

    kinds: str
    """One letter a block, by its number in the model."""
    numbers: list[int]
    """Of the blocks that run."""
    micro: StepEvents = field(default_factory=StepEvents)
    spans: Spans = field(default_factory=Spans)
    names: list[tuple] = field(default_factory=list)
    _known: dict = field(default_factory=dict)

    def make(self, *name):
        self._known[name] = len(self.names)
        self.names.append(name)
        self.micro.events.append(self._known[name])

    def free(self, *name):
        self.micro.events.append(~self._known.pop(name))

    def arrive(self, number, parameter):
        slot = self._known["gradient", number, parameter]
        self.micro.accumulated.append(
            Accumulated(len(self.micro.events), 2 * number + parameter, slot, False)
        )

    def begin(self):
        return len(self.micro.events)

    def readable(self):
        """Return events, marks and gradients by name, whatever the slots' numbers are."""
        return readable(self.micro, self.names)


def readable(micro, names):
    events, row = [], []
    for event in micro.events:
        if event < 0:
            row.append(("-", *map(str, names[~event])))
            continue
        events += [*sorted(row), ("+", *map(str, names[event]))]  # what goes in a row goes in any order
        row = []
    events += sorted(row)
    arrived = [
        (entry.position, entry.parameter, names[entry.slot], entry.copied) for entry in micro.accumulated
    ]
    return events, micro.marks, arrived


def step(kinds, numbers=None, leftovers=False, prefetch=False, gathers=False, mask=False):
    """Make a micro-step: `C` blocks keep their input alone and compute again, `W` are wider, all others keep more."""
    made = Made(kinds, list(range(len(kinds))) if numbers is None else numbers)
    made.micro.marks.append((0, "forward"))
    made.make("embedded")
    before = "embedded"
    for place, number in enumerate(made.numbers):
        begin = made.begin()
        if prefetch and place + 1 < len(made.numbers):
            made.make("gathered", number)  # for the next
        made.make("inside", number)
        if kinds[number] == "C":
            made.free("inside", number)
            if leftovers:
                made.make("state", number)
        if kinds[number] == "W":
            made.make("wide", number)
        made.make("out", number)
        if prefetch and place:
            made.free("gathered", made.numbers[place - 1])
        made.spans.forward.append((begin, made.begin()))
    if gathers:
        made.make("all")
    made.make("logits")
    made.micro.marks.append((made.begin(), "backward"))
    made.make("upstream", "head")
    made.free("logits")
    for place, number in reversed(list(enumerate(made.numbers))):
        begin = made.begin()
        if mask and place == len(made.numbers) - 1:
            made.make("mask")  # is fetched for the last block, and serves all
        if kinds[number] == "C":
            made.make("again", number)
            made.free("again", number)
        else:
            made.free("inside", number)
        if kinds[number] == "W":
            made.free("wide", number)
        for parameter in (1, 0):
            made.make("gradient", number, parameter)
            made.arrive(number, parameter)
        made.make("upstream", number)
        made.free("upstream", made.numbers[place + 1] if place + 1 < len(made.numbers) else "head")
        made.free("out", number)
        if mask and not place:
            made.free("mask")
        made.spans.backward.insert(0, (begin, made.begin()))
    made.free("upstream", made.numbers[0])
    made.free(before)
    if leftovers:
        for number in made.numbers:
            if kinds[number] == "C":
                made.free("state", number)
    return made


def deepened(short, kept, cuts, alike=lambda ours, theirs: True):
    names = list(short.names)
    count = len(short.kinds)
    shortened = Shortened(
        tuple(kept), tuple(cuts), tuple((2 * number, 2 * number + 1) for number in range(count))
    )

    def copy(slot, position, number):
        what, of, *rest = short.names[slot]
        moved = of + number - kept[position]
        names.append((what, moved, *rest))
        return len(names) - 1

    found, spans, _ = deepen(short.micro, short.spans, shortened, copy, alike)
    assert len(spans.forward) == len(spans.backward) == len(shortened.parameters)
    return readable(found, names)


@pytest.mark.parametrize("options", [{}, {"prefetch": True}], ids=["plain", "prefetch"])
@pytest.mark.parametrize(
    ("kinds", "kept", "cuts"),
    [
        ("A" * 9, [0, 1, 2, 8], [LeftOutBlocks(3, 1)]),
        ("C" * 7, [0, 1, 2, 6], [LeftOutBlocks(3, 1)]),
        ("AW" * 6, [0, 1, 2, 3, 4, 5, 10, 11], [LeftOutBlocks(6, 2)]),
        ("AW" * 6 + "A", [0, 1, 2, 3, 4, 5, 10, 11, 12], [LeftOutBlocks(6, 2)]),
        ("W" + "A" * 8, [0, 1, 2, 3, 8], [LeftOutBlocks(4, 1)]),
        ("C" * 6 + "A" * 7, [0, 1, 2, 5, 6, 7, 8, 12], [LeftOutBlocks(3, 1), LeftOutBlocks(7, 1)]),
    ],
)
def test_a_few_blocks_tell_what_all_of_them_do(kinds, kept, cuts, options):
    whole, short = step(kinds, **options), step(kinds, kept, **options)
    assert len(short.micro.events) < len(whole.micro.events)
    assert deepened(short, kept, cuts) == whole.readable()


@pytest.mark.parametrize(
    ("kinds", "kept", "cuts"),
    [
        ("A" * 9, [0, 1, 2, 7, 8], [LeftOutBlocks(3, 1)]),
        ("AW" * 6, [0, 1, 2, 3, 4, 5, 8, 9, 10, 11], [LeftOutBlocks(6, 2)]),
        ("C" * 6 + "A" * 7, [0, 1, 2, 5, 6, 7, 8, 11, 12], [LeftOutBlocks(3, 1), LeftOutBlocks(7, 1)]),
    ],
)
def test_what_is_made_for_the_last_block_and_dropped_after_the_first_serves_all(kinds, kept, cuts):
    whole, short = step(kinds, mask=True), step(kinds, kept, mask=True)
    assert deepened(short, kept, cuts) == whole.readable()


def test_what_is_let_go_of_at_the_end_is_let_go_of_for_each():
    whole, short = step("C" * 8, leftovers=True), step("C" * 8, [0, 1, 2, 7], leftovers=True)
    assert deepened(short, [0, 1, 2, 7], [LeftOutBlocks(3, 1)]) == whole.readable()


def test_blocks_that_differ_are_not_repeated():
    short = step("AAWAAAAA", [0, 1, 2, 7])
    with pytest.raises(NotAlike, match="differ"):
        deepened(short, [0, 1, 2, 7], [LeftOutBlocks(3, 1)])
    short = step("A" * 8, [0, 1, 2, 7])
    with pytest.raises(NotAlike, match="other sizes"):
        deepened(short, [0, 1, 2, 7], [LeftOutBlocks(3, 1)], alike=lambda ours, theirs: ours == theirs)


def test_calls_are_repeated_in_both_directions():
    shortened = Shortened((0, 1, 2, 6), (LeftOutBlocks(3, 1),), ((),) * 7)
    forward = [(1, 2), (2, 3), (3, 4), (4, 5)]
    calls, spans = repeat(list("eabcdh"), forward, shortened)
    assert calls == list("eabc") + ["b"] * 3 + list("dh")
    assert spans == [(number, number + 1) for number in range(1, 8)]
    backward = [(4, 5), (3, 4), (2, 3), (1, 2)]
    calls, spans = repeat(list("hdcbae"), backward, shortened)
    assert calls == list("hd") + ["b"] * 3 + list("cbae")
    assert spans == [(number, number + 1) for number in range(7, 0, -1)]
