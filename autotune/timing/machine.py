"""What a device and its links reach, in FLOP/s, bytes/s and seconds: from a data sheet, or as a worker timed it.

The shares of the peaks that kernels reach are constants with their source, the same for all models. One, `SHAPE`, was
looked for after a comparison with published runs had come out 1.5 times too fast (docs/step_time.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.devices.hardware import Hardware
from autotune.specs import DeviceSpeed, FileSpeed
from autotune.timeline.op_counts import MathType, Operator
from autotune.timing.collectives import ACHIEVED, NETWORK, SERVER, Links

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
START = 2e-6
"""Seconds that a kernel takes beside its work: 0.9 us between two launches (NVIDIA, Getting Started with CUDA Graphs),
and as much again for filling and draining the GPU (assumed)."""
FUSED_RANDOM = 4.2
"""Seconds in which a thread of a compiled kernel draws a number of a dropout mask, where torch's generator takes one:
the kernel computes each from a counter (Philox) and uses one of the four numbers that this gives. A generator is one
thread's, a kernel is divided among all. By blocks of GPT-2 (`benchmarks/fused_kernels.py`: of three families 4.0 to
5.3); a mask that is drawn alone takes 3.2 to 4.2, on two days."""
FUSED = 2.0
"""Elements that a processor goes through in a kernel that computes several operators, where an elementwise operator by
itself goes through one: the others are in registers. 1.8 to 2.0 there."""
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
