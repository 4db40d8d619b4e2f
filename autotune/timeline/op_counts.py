"""The work of a training's operators: FLOPs and bytes, affine in the micro-batch like the sizes of its memory.

Pure data, recorded by a trace beside the allocations. Operators that do the same are folded into one with a count.
Bytes are those that a kernel must move at least: what it reads and what it writes, each once; views are free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from autotune.outcome import Phase

OpKind = Literal[
    "memory", "matmul", "attention", "upload", "download", "host",
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
    "random", "fused_random", "fused_pointwise",
]  # fmt: skip
KINDS: tuple[OpKind, ...] = get_args(OpKind)
"""`memory` moves bytes and computes little; `matmul` and `attention` run on matrix units; `upload` and `download` cross
between host and device; `host` runs on the processor; `random` draws a random number for each element with torch's
generator; kernels of torch's compiler together draw those of `fused_random`, and compute `fused_pointwise`, where what
they move is told as `memory`; the rest are collectives."""

COLLECTIVES: frozenset[OpKind] = frozenset(
    ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
)

MathType = Literal["none", "fp32", "tf32", "fp16", "bf16", "fp8"]
MATH_TYPES: tuple[MathType, ...] = get_args(MathType)
"""What a matrix product multiplies; `none` for operators without one."""


class Operator(NamedTuple):
    """What one call of an operator does, at one micro-batch."""

    name: str
    kind: OpKind
    math: MathType
    ranks: int
    """Devices that take part in a collective; 1 for everything else."""
    flops: int
    bytes: int
    """Moved in the device's memory, over the host link, or the whole tensor of a collective (its larger side)."""
    stride: int = 1
    """From one of a collective's devices to the next, in ranks: 1 for neighbours."""


@dataclass(frozen=True)
class Operators:
    """One entry for each distinct operator; all lists are of equal length."""

    name: list[str] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    """Index into KINDS."""
    math: list[int] = field(default_factory=list)
    """Index into MATH_TYPES."""
    ranks: list[int] = field(default_factory=list)
    stride: list[int] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)
    flops_slope: list[int] = field(default_factory=list)
    """A call takes flops + flops_slope x micro-batch."""
    bytes: list[int] = field(default_factory=list)
    bytes_slope: list[int] = field(default_factory=list)

    def at(self, index: int, micro_batch: int) -> Operator:
        """Return an operator as it is at a micro-batch."""
        return Operator(
            self.name[index], KINDS[self.kind[index]], MATH_TYPES[self.math[index]], self.ranks[index],
            max(0, self.flops[index] + self.flops_slope[index] * micro_batch),
            max(0, self.bytes[index] + self.bytes_slope[index] * micro_batch),
            self.stride[index],
        )  # fmt: skip

    def add(self, least: Operator, flops_slope: int, bytes_slope: int, micro_batch: int) -> None:
        """Append an operator, given as it is at `micro_batch`, and what it grows by."""
        self.name.append(least.name)
        self.kind.append(KINDS.index(least.kind))
        self.math.append(MATH_TYPES.index(least.math))
        self.ranks.append(least.ranks)
        self.stride.append(least.stride)
        self.flops.append(least.flops - flops_slope * micro_batch)
        self.flops_slope.append(flops_slope)
        self.bytes.append(least.bytes - bytes_slope * micro_batch)
        self.bytes_slope.append(bytes_slope)


Counts = list[tuple[int, int]]
"""(index of the operator, times that it runs)."""


@dataclass(frozen=True)
class OpCounts:
    """The operators of one micro-step and of one optimizer step (the second: the first makes the state)."""

    operators: Operators
    micro: dict[Phase, Counts]
    """At any micro-batch from 2 on (or at the only one that the trace holds for)."""
    single: dict[Phase, Counts] | None
    """At micro-batch 1."""
    update: dict[Phase, Counts]
    note: str = ""
    """What is not affine in the micro-batch, where something is not; the trace found it at micro-batch 1."""

    def of(self, phase: Phase, micro_batch: int) -> list[tuple[Operator, int]]:
        """Return the operators of a phase, each with its count."""
        alone = self.single if micro_batch == 1 and self.single is not None else self.micro
        counts = alone.get(phase) or self.update.get(phase) or []
        return [(self.operators.at(index, micro_batch), count) for index, count in counts]

    def flops(self, micro_batch: int) -> dict[Phase, int]:
        """Return the FLOPs of every phase of one micro-step and one optimizer step."""
        return {
            phase: sum(operator.flops * count for operator, count in self.of(phase, micro_batch))
            for phase in ("forward", "backward", "optimizer")
        }

    @classmethod
    def parse(cls, data: dict[str, Any]) -> OpCounts:
        """Rebuild what `dataclasses.asdict` and JSON made of them."""

        def counts(phases: dict[str, list[list[int]]] | None) -> Any:
            if phases is None:
                return None
            return {phase: [(index, count) for index, count in pairs] for phase, pairs in phases.items()}

        return cls(
            Operators(**data["operators"]), counts(data["micro"]), counts(data["single"]), counts(data["update"]),
            data["note"],
        )  # fmt: skip
