"""Seconds of a training step from what its operators do and what the hardware can: a roofline, and rough.

An operator takes as long as the slower of its arithmetic and its memory traffic (Williams, Waterman and Patterson,
Roofline, 2009), and a little for starting it. What runs on engines of its own overlaps: the phase of a step takes as
long as the busiest of compute, the processor that launches, the link to the host (each way for itself), the links
between devices, and the disk that a processor offloads to. That is the best case, in which every copy is issued early
enough.

The shares of the peaks that kernels reach are constants with their source, the same for all models. One, `SHAPE`, was
looked for after a comparison with published runs had come out 1.5 times too fast (docs/step_time.md). Not covered:
matrix shapes that fill the last wave of a GPU badly, clocks under a power limit, and caches. Of a compiler's kernels is
known what each moves, and what those of one program compute together. Probes correct all of that
(`autotune.timing.calibration`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from autotune.devices.hardware import Hardware
from autotune.outcome import Communication, Phase, Sample, StepTiming
from autotune.specs import DeviceSpeed, FileSpeed
from autotune.techniques.sharding import REPLICATED, SHARDINGS
from autotune.timeline.op_counts import COLLECTIVES, MathType, OpCounts, Operator, OpKind
from autotune.timeline.timeline import Timeline
from autotune.timing.collectives import ACHIEVED, NETWORK, SERVER, Links, collectives
from autotune.units import MIB

SHAPE = 0.85
"""Matrix products of any large shape reach 80 to 90% of what the best shape does (source as below). Chosen after the
published runs of `benchmarks/step_time.py` had been seen without it."""
MATRIX = {7: 0.8 * SHAPE, 8: 0.85 * SHAPE, 9: 0.8 * SHAPE, 10: 0.8 * SHAPE, 12: 0.85 * SHAPE}
"""Share of the peak that large matrix products reach, by major compute capability. The best shapes, of S. Bekman,
Machine Learning Engineering, "Maximum Achievable Matmul FLOPS" (torch 2.5 to 2.7): A100 SXM 87%, A100 PCIe 81%, H100
SXM 80%, GH200 84%. Nothing like it was found for the others: what Hopper reaches is assumed, and for the RTX cards of
Blackwell (12) what Ampere does."""
MATRIX_AMD = 0.55 * SHAPE
"""The same for MI300X: 51% and 60% in two measurements there; assumed for AMD's later GPUs."""
ATTENTION = {7: 0.33, 8: 0.6, 9: 0.55, 10: 0.55, 12: 0.6}
"""Share of the peak that fused attention reaches. FlashAttention-2 on A100: 50 to 73%, its predecessor 25 to 40%, which
stands for older GPUs (Dao 2023, abstract). Hopper: cuDNN's kernel, which torch prefers there since 2.11, as
FlashAttention-3's own measurements show it (Shah et al. 2024: backward 550 of 989 TFLOP/s). Blackwell's
RTX cards, which lack Hopper's instructions, as Ampere: assumed."""
ATTENTION_AMD = 0.4
"""Assumed: FlashAttention-2's share lowered as that of matrix products is."""
MEMORY = 0.85
"""Share of the memory's bandwidth that kernels reach which stream through it. NVIDIA's Volta white paper claims up to
95%, where it has 76% for Pascal."""
HOST_LINK = 0.8
"""Share of the host link's bandwidth that copies from and to pinned memory reach: 25 of 31.5 GB/s on PCIe 4.0 x16."""
HOST_MEMORY = 100e9
"""Bytes/s that operators on the processor stream: assumed, half of a socket with eight channels of DDR4-3200."""
DISK = 0.2e9
"""Bytes/s that a disk takes for as long as someone writes: assumed, about what a virtual machine's did
(`benchmarks/file_writes.py`). To measure it takes gigabytes, because less is kept in memory."""
START = 2e-6
"""Seconds that a kernel takes beside its work: 0.9 us between two launches (NVIDIA, Getting Started with CUDA Graphs),
and as much again for filling and draining the GPU (assumed)."""
FUSED_RANDOM = 3.4
"""Seconds in which a thread of a compiled kernel draws a number of a dropout mask, where torch's generator takes one:
the kernel computes each from a counter (Philox) and uses one of the four numbers that this gives. A generator is one
thread's, a kernel is divided among all. So it is where nothing else is computed, 19 beside 5.8 ns; of whole blocks
(`benchmarks/fused_kernels.py`) what is computed beside makes it 4 to 5."""
FUSED = 2.0
"""Elements that a processor goes through in a kernel that computes several operators, where an elementwise operator by
itself goes through one: the others are in registers (as above)."""
ELEMENTWISE = 4.0
"""Elements of a usual elementwise operator that a processor goes through while it computes one of GELU: assumed."""
LAUNCH = 10e-6
"""Seconds that the processor needs for an operator in eager mode, autograd and Python included; published breakdowns
have 5 to 25 us. It matters where kernels are shorter than that."""


@dataclass(frozen=True)
class Machine:
    """What one device and its links reach, in FLOP/s and bytes/s."""

    matrix: Mapping[MathType, float]
    """Matrix products, by what they multiply."""
    attention: Mapping[MathType, float]
    memory: float
    host_link: float
    """To the host or from it; both at a time."""
    links: Links
    host_memory: float = HOST_MEMORY
    files: FileSpeed | None = None
    """Of those that a processor offloads to; None on a GPU, and where it was not measured: then they take no time."""
    start: float = START
    launch: float = LAUNCH
    random: float | None = None
    """Random numbers/s of torch's generator; None where numbers are drawn while the bytes are moved, as on a GPU."""
    fused_random: float | None = None
    """The same within kernels of torch's compiler."""

    @classmethod
    def of(cls, hardware: Hardware, attention: float | None = None) -> Machine:
        """Return what this hardware reaches; `attention` replaces the share of the peak that attention gets."""
        major = int((hardware.compute_capability or "0").partition(".")[0])
        matrix = MATRIX.get(major, MATRIX_AMD)
        fused = ATTENTION.get(major, ATTENTION_AMD) if attention is None else attention
        peaks = _peaks(hardware)
        # Without a link of their own, GPUs talk over the host's.
        link = (hardware.link_gb_s or hardware.host_gb_s) * 1e9 / 2
        return cls(
            matrix={math: peak * matrix for math, peak in peaks.items()},
            attention={math: peak * fused for math, peak in peaks.items()},
            memory=hardware.memory_gb_s * 1e9 * MEMORY,
            host_link=hardware.host_gb_s * 1e9 / 2 * HOST_LINK,
            links=Links(link * ACHIEVED, NETWORK.get(major, NETWORK[9]) * ACHIEVED, SERVER),
        )

    @classmethod
    def at_peak(cls, hardware: Hardware) -> Machine:
        """Return what the data sheet promises, and nothing between operators: no real step is faster."""
        peaks, found = _peaks(hardware), cls.of(hardware)
        return replace(
            found, matrix=peaks, attention=peaks, memory=hardware.memory_gb_s * 1e9,
            host_link=hardware.host_gb_s * 1e9 / 2, start=0.0, launch=0.0,
        )  # fmt: skip

    @classmethod
    def measured(cls, speed: DeviceSpeed) -> Machine:
        """Return a machine of which a worker timed a few operators; links are assumed as fast as memory.

        What is computed by the processor is launched by it too, so a launch is part of each operator.
        """
        matrix = _filled(speed.matrix_flops, "fp32")
        attention = _filled(speed.attention_flops, "fp32")
        fused_random = None if speed.random is None else speed.random / FUSED_RANDOM * speed.threads
        return cls(
            matrix={**matrix, "none": speed.elementwise_flops * ELEMENTWISE}, attention=attention,
            memory=speed.memory, host_link=speed.memory, links=Links(speed.memory, speed.memory, SERVER),
            host_memory=speed.memory, start=speed.operator, launch=0.0,
            files=speed.files, random=speed.random, fused_random=fused_random,
        )  # fmt: skip

    def seconds(self, operator: Operator) -> float:
        """Return the seconds of one call, on the engine that it runs on."""
        match operator.kind:
            case "upload" | "download":
                return operator.bytes / self.host_link
            case "host":
                return operator.bytes / self.host_memory
            case "matmul":
                arithmetic = operator.flops / self.matrix[operator.math]
            case "attention":
                arithmetic = operator.flops / self.attention[operator.math]
            case "random":
                arithmetic = operator.flops / (self.random or self.matrix["none"])
            case "fused_random":
                arithmetic = operator.flops / (self.fused_random or self.matrix["none"])
            case "fused_pointwise":
                arithmetic = operator.flops / (self.matrix["none"] * FUSED)
            case "memory":
                arithmetic = operator.flops / self.matrix["none"]
            case _:
                return self.links.seconds(operator.kind, operator.bytes, operator.ranks, operator.stride)
        return max(arithmetic, operator.bytes / self.memory) + self.start

    def in_nodes(self, ranks: int, nodes: int) -> Machine:
        """Return the machine as one of `ranks` that are known to be in so many nodes, as many in each."""
        return self if nodes == 1 else replace(self, links=replace(self.links, server=ranks // nodes))


def _filled(measured: Mapping[str, float], single: str) -> dict[MathType, float]:
    """Return FLOP/s for every type; one that was not measured runs as the widest does."""
    widest = measured[single]
    types: tuple[MathType, ...] = ("none", "fp32", "tf32", "fp16", "bf16", "fp8")
    return {math: measured.get(math, widest) for math in types}


def _peaks(hardware: Hardware) -> dict[MathType, float]:
    """Return the peak FLOP/s by type; a type that the hardware lacks runs as the next wider one does."""
    peaks = hardware.peak_flops()
    single = peaks["fp32"]
    half = peaks.get("bf16", single)
    return {
        "none": single,
        "fp32": single,
        "tf32": peaks.get("tf32", single),
        "fp16": peaks.get("fp16", single),
        "bf16": half,
        "fp8": peaks.get("fp8", half),
    }


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


def without_launches(machine: Machine) -> Machine:
    """Return the machine as a compiled training sees it: the processor launches graphs, not operators."""
    return replace(machine, launch=0.0)
