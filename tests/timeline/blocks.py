"""A model made of numbers: the timeline of a training whose first blocks are checkpointed and the others not."""

from dataclasses import replace

from autotune.timeline.depth import Spans
from autotune.timeline.op_counts import OpCounts, Operator, Operators
from autotune.timeline.step_events import Accumulated, Slots, StepEvents
from autotune.timeline.timeline import Timeline
from autotune.timeline.traced_blocks import BlockWork, SortsOfWork, TracedBlocks

WEIGHT, HIDDEN, SAVED, CAST, LOGITS = 1000, 64, 200, 500, 900
"""Bytes of a block's weight; of a block's output, of what a block saves, and of all logits, for a sample; of a cast."""


class Written:
    """Slots and events as a trace would write them down."""

    def __init__(self):
        self.slots, self.events, self.names = Slots(), [], {}

    def make(self, name, base, slope, category, module):
        self.names[name] = len(self.slots.base)
        for values, value in zip(vars(self.slots).values(), (base, slope, category, 0, module), strict=True):
            values.append(value)
        self.events.append(self.names[name])

    def free(self, *names):
        self.events.extend(~self.names[name] for name in names)


def model(blocks, checkpointed, odd=None, frozen=False):
    """Return a training's timeline as a trace of exactly so many checkpointed blocks would give it.

    Block `odd` saves a tensor more than the others. With `frozen` nothing before the blocks trains.
    """
    modules = ["", "model", *(f"model.layers.{number}" for number in range(blocks))]
    written = Written()
    for number in range(blocks):
        written.make(f"weight {number}", WEIGHT, 0, 0, number + 2)
    build, written.events = written.events, []
    micro = step(written, "", blocks, checkpointed, odd, frozen)
    single = step(written, "one ", blocks, checkpointed, odd, frozen)
    written.events = []
    for number in range(blocks):
        written.make(f"state {number}", 2 * WEIGHT, 0, 2, number + 2)
    written.free(*(f"gradient {number}" for number in range(blocks)), "loss")
    first, written.events = written.events, []
    written.free(*(f"gradient {number}" for number in range(blocks)), "loss")
    plain = BlockWork(*[{"forward": [(0, 1)], "backward": [(0, 2)]}] * 2)
    again = BlockWork(*[{"forward": [(0, 1)], "backward": [(0, 3)]}] * 2)
    operators = Operators()
    operators.add(Operator("mm", "matmul", "bf16", 1, 100, 10), 50, 5, 2)
    operators.add(Operator("loss", "memory", "none", 1, 7, 7), 0, 0, 2)
    counts = {"forward": [(0, blocks), (1, 1)], "backward": [(0, 2 * blocks + checkpointed), (1, 2)]}
    names, numbers = modules[2:], [[number] for number in range(blocks)]
    return Timeline(
        device="cpu", slots=written.slots, modules=modules, build=StepEvents(build, [(0, "build")]),
        micro=micro[0], single=single[0], first_update=StepEvents(first, [(0, "optimizer")]),
        update=StepEvents(written.events, [(0, "optimizer")]),
        work=OpCounts(operators, counts, counts, {"optimizer": [(1, 1)]}),
        blocks=TracedBlocks(
            names, numbers, checkpointed, micro[1], single[1], SortsOfWork(again, plain)
        ),
    )  # fmt: skip


def step(written, kind, blocks, checkpointed, odd, frozen):
    """Write a micro-step down; return it with the spans of its blocks."""
    written.events = []
    forward, backward, accumulated = [], [], []
    written.make(f"{kind}hidden -1", 0, HIDDEN, 3, 1)
    for number in range(blocks):
        begin = len(written.events)
        written.make(f"{kind}cast {number}", CAST, 0, 6, number + 2)
        save(written, kind, number, odd)
        written.make(f"{kind}hidden {number}", 0, HIDDEN, 3, number + 2)
        if number < checkpointed:
            forget(written, kind, number, odd)
        forward.append((begin, len(written.events)))
    written.make(f"{kind}logits", 0, LOGITS, 3, 1)
    written.make(f"{kind}loss", 4, 0, 3, 1)
    written.free(*(f"{kind}cast {number}" for number in range(blocks)))  # when autocast ends, all at once
    marks = [(0, "forward"), (len(written.events), "backward")]
    written.make(f"{kind}gradient of {blocks - 1}", 0, HIDDEN, 6, 1)
    written.free(f"{kind}logits")
    for number in reversed(range(blocks)):
        begin = len(written.events)
        if number < checkpointed:
            save(written, kind, number, odd)
        written.make(f"{kind}gradient {number}", WEIGHT, 0, 1, number + 2)
        accumulated.append(
            Accumulated(len(written.events), number, written.names[f"{kind}gradient {number}"], False)
        )
        if number or not frozen:
            written.make(f"{kind}gradient of {number - 1}", 0, HIDDEN, 6, number + 2)
        forget(written, kind, number, odd)
        written.free(f"{kind}gradient of {number}", f"{kind}hidden {number}")
        backward.insert(0, (begin, len(written.events)))
    written.free(*([] if frozen else [f"{kind}gradient of -1"]), f"{kind}hidden -1")
    return StepEvents(written.events, marks, accumulated), Spans(forward, backward)


def save(written, kind, number, odd):
    for which in range(3 if number == odd else 2):
        written.make(f"{kind}saved {number} {which}", 0, SAVED * (which + 1), 3, number + 2)


def forget(written, kind, number, odd):
    written.free(*(f"{kind}saved {number} {which}" for which in range(3 if number == odd else 2)))


def without_blocks(timeline):
    """Return the timeline as one that does not say where blocks lie."""
    return replace(timeline, blocks=None)
