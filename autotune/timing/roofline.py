"""Seconds of a training step from what its operators do and what the hardware can: a roofline, and rough.

An operator takes as long as the slower of its arithmetic and its memory traffic (Williams, Waterman and Patterson,
Roofline, 2009), and a little for starting it. What runs on engines of its own overlaps: the phase of a step takes as
long as the busiest of compute, the processor that launches, the link to the host (each way for itself), the links
between devices, and the disk that a processor offloads to. That is the best case, in which every copy is issued early
enough.

What hardware reaches is `timing.machine`'s. Not covered: matrix shapes that fill the last wave of a GPU badly, clocks
under a power limit, and caches. Of a compiler's kernels is known what each moves, and what those of one program compute
together. Probes correct all of that (`autotune.timing.calibration`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from autotune.outcome import Communication, Phase, Sample, StepTiming
from autotune.specs import FileSpeed
from autotune.techniques.sharding import REPLICATED, SHARDINGS
from autotune.timeline.op_counts import COLLECTIVES, OpCounts, Operator, OpKind
from autotune.timeline.timeline import Timeline
from autotune.timing.collectives import collectives
from autotune.timing.machine import Machine
from autotune.units import MIB

DISK = 0.2e9
"""Bytes/s that a disk takes for as long as someone writes: assumed, about what a virtual machine's did
(`benchmarks/file_writes.py`). To measure it takes gigabytes, because less is kept in memory."""


@dataclass(frozen=True)
class Busy:
    """Seconds that each engine is busy in one stretch of a step."""

    compute: float = 0.0
    launch: float = 0.0
    upload: float = 0.0
    download: float = 0.0
    host: float = 0.0
    links: float = 0.0
    disk: float = 0.0

    @property
    def seconds(self) -> float:
        """What the stretch takes: the busiest engine, and what the processor computes, which nothing hides."""
        engines = (self.compute, self.launch, self.upload, self.download, self.links, self.disk)
        return max(engines) + self.host

    def __add__(self, other: Busy) -> Busy:
        return Busy(
            self.compute + other.compute, self.launch + other.launch, self.upload + other.upload,
            self.download + other.download, self.host + other.host, self.links + other.links,
            self.disk + other.disk,
        )  # fmt: skip


def busy(operators: Iterable[tuple[Operator, int]], machine: Machine) -> Busy:
    """Add up operators, each with its count, by the engine that they run on."""
    time = dict.fromkeys(("compute", "launch", "upload", "download", "host", "links"), 0.0)
    for operator, count in operators:
        seconds = count * machine.seconds(operator)
        if operator.kind in COLLECTIVES:
            time["links"] += seconds
        elif operator.kind in ("upload", "download", "host"):
            time[operator.kind] += seconds
        else:
            time["compute"] += seconds
        if operator.kind != "host":
            time["launch"] += count * machine.launch
    return Busy(**time)


@dataclass(frozen=True)
class Extra:
    """Collectives that a trace of one device does not show, and how far sharding shortens the optimizer step."""

    micro_step: dict[Phase, list[tuple[Operator, int]]] = field(default_factory=dict)
    """Of every micro-step but the last."""
    last_micro_step: dict[Phase, list[tuple[Operator, int]]] = field(default_factory=dict)
    optimizer_share: float = 1.0
    """Share of the parameters whose optimizer state this device keeps."""


@dataclass(frozen=True)
class StepTime:
    """The parts of a global step by phase and engine, in seconds."""

    forward: Busy
    backward: Busy
    """Of a micro-step that is not the last."""
    last_forward: Busy
    last_backward: Busy
    optimizer: Busy

    def timing(self) -> StepTiming:
        """Return the parts as a measurement has them, with no repetition and no interval."""

        def sample(*parts: Busy) -> Sample:
            return Sample(mean=sum(part.seconds for part in parts), half_width=None, count=0)

        return StepTiming(
            micro_step=sample(self.forward, self.backward),
            last_micro_step=sample(self.last_forward, self.last_backward),
            optimizer_step=sample(self.optimizer),
        )

    def communication(self) -> Communication:
        """Return how long the links between devices are busy in each part."""
        return Communication(
            micro_step=self.forward.links + self.backward.links,
            last_micro_step=self.last_forward.links + self.last_backward.links,
            optimizer_step=self.optimizer.links,
        )


def step_time(
    timeline: Timeline,
    micro_batch: int,
    machine: Machine,
    accumulating: bool = False,
    extra: Extra | None = None,
) -> StepTime | None:
    """Price a step; None where the timeline knows no work or does not cover the micro-batch.

    Without `extra`, what its sharding adds that no trace shows follows from what the timeline says of itself.
    Where several micro-steps accumulate, adding a gradient to the one that is there reads both and writes one.
    """
    work = timeline.work
    if work is None or not timeline.covers(micro_batch):
        return None
    machine = machine.in_nodes(int(timeline.facts.get("world_size", 1)), int(timeline.facts.get("nodes", 1)))
    extra = extra or untraced(timeline)
    adding = _accumulation(timeline) if accumulating else []
    forward = work.of("forward", micro_batch)
    backward = work.of("backward", micro_batch) + adding
    waiting = _in_the_last(timeline)
    early = [(operator, count) for operator, count in backward if operator.kind not in waiting]
    optimizer = _shared(work, micro_batch, extra.optimizer_share)
    moved = (
        Busy() if machine.files is None else written(timeline.activations_on_disk(micro_batch), machine.files)
    )
    return StepTime(
        forward=busy(forward + extra.micro_step.get("forward", []), machine) + moved,
        backward=busy(early + extra.micro_step.get("backward", []), machine),
        last_forward=busy(forward + extra.last_micro_step.get("forward", []), machine) + moved,
        last_backward=busy(backward + extra.last_micro_step.get("backward", []), machine),
        optimizer=busy(optimizer, machine),
    )


def written(moved: int, files: FileSpeed) -> Busy:
    """Return what a processor takes to copy bytes into new files.

    It computes nothing while it copies. The kernel writes them to the disk beside that; of more than it keeps unwritten
    the disk has to take the rest before the copy can end.
    """
    return Busy(compute=moved / files.copy_speed, disk=max(0, moved - files.unwritten) / DISK)


BUCKET = 25 * MIB
"""Bytes that DDP reduces at a time (torch's `bucket_cap_mb`)."""


def untraced(timeline: Timeline) -> Extra:
    """Return the collectives of a sharded timeline that are no operators: DDP reduces gradients in C++.

    It does so in the last micro-step alone, under `zero1` too, in the candidate's type. FSDP2's and the
    optimizer's own are traced.
    """
    ranks = int(timeline.facts.get("world_size", 1))
    if ranks < 2 or timeline.facts.get("sharding") not in REPLICATED or _by_deepspeed(timeline):
        return Extra()
    parameters = int(timeline.facts["parameters"])
    units = max(1, 4 * parameters // BUCKET)
    width = 2 if timeline.facts.get("reduce_dtype") == "bf16" else 4
    found = collectives("ddp", parameters, units, ranks, compute=4, reduce=width, synchronized=True)
    return Extra(last_micro_step={"backward": found})


def _in_the_last(timeline: Timeline) -> tuple[OpKind, ...]:
    """Return the collectives of a traced backward pass that only the last micro-step of a global step has."""
    if _by_deepspeed(timeline):
        return ("all_reduce",) if timeline.facts.get("sharding") == "zero1" else ()
    across_nodes = SHARDINGS[str(timeline.facts.get("sharding", "none"))].within_node
    return ("all_reduce",) if across_nodes and timeline.facts.get("reduce_dtype") != "bf16" else ()


def _by_deepspeed(timeline: Timeline) -> bool:
    """Tell whether DeepSpeed reduces, whose collectives are all traced."""
    return timeline.facts.get("engine") == "deepspeed"


def _accumulation(timeline: Timeline) -> list[tuple[Operator, int]]:
    sizes = timeline.slots.base
    return [
        (Operator("add_", "memory", "none", 1, 0, 3 * sizes[entry.slot]), 1)
        for entry in timeline.micro.accumulated
    ]


def _shared(work: OpCounts, micro_batch: int, share: float) -> list[tuple[Operator, int]]:
    return [
        (operator._replace(flops=int(operator.flops * share), bytes=int(operator.bytes * share)), count)
        for operator, count in work.of("optimizer", micro_batch)
    ]
