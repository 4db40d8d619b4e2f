"""What devices say to each other in a training step, and how long it takes.

Times are those of rings, with the factors of NVIDIA's nccl-tests (doc/PERFORMANCE.md): an all-reduce of S bytes over n
ranks moves 2 (n-1)/n S over every rank's link, an all-gather, a reduce-scatter and an all-to-all (n-1)/n S. Volumes by
strategy, for where no trace shows the collectives, are those of Rajbhandari et al., ZeRO (2020), section 7, with the
types that FSDP2 and DDP send. Not covered: trees and reductions inside the switch, which are faster for small messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.timeline.op_counts import Operator, OpKind

ACHIEVED = 0.8
"""Share of a link's bandwidth that large collectives reach. nccl-tests on 8 A100 over NVLink: some 235 of 300 GB/s."""
LATENCY = 20e-6
"""Seconds that a collective takes however small it is: what nccl-tests show for 8 GPUs of one server."""
NETWORK = {7: 12.5e9, 8: 25e9, 9: 50e9, 10: 50e9}
"""Bytes/s of one GPU's network card, one way, by major compute capability: DGX V100 and A100 data sheets (100 and 200
Gb/s a card; one card for two GPUs in the former), DGX H100 and B200 (400 Gb/s)."""
SERVER = 8
"""GPUs in a server, as in all of these."""

ParallelStrategy = Literal["ddp", "zero1", "zero2", "zero3"]


@dataclass(frozen=True)
class Links:
    """The ways between devices, one way, in bytes/s that large messages reach."""

    within: float
    """Of one GPU to the others of its server."""
    across: float
    """Of one GPU's share of the network to the other servers."""
    server: int = SERVER
    """GPUs in a server."""

    def bandwidth(self, ranks: int, stride: int = 1) -> float:
        """Return bytes/s of every rank's link in a collective of `ranks` devices, each `stride` after the one before.

        A ring over several servers enters each of them through the cards of all its members there at once, one ring
        for each. Those of a server that are members of other groups talk at the same time, through their own.
        """
        if (ranks - 1) * stride < self.server:
            return self.within
        return min(self.within, max(1, self.server // stride) * self.across)

    def seconds(self, kind: OpKind, size: float, ranks: int, stride: int = 1) -> float:
        """Return the seconds of one collective over such devices, of `size` bytes in its larger tensor."""
        if ranks < 2:
            return 0.0
        share = (ranks - 1) / ranks
        factor = {"all_reduce": 2 * share, "broadcast": 1.0}.get(kind, share)
        return LATENCY + factor * size / self.bandwidth(ranks, stride)


def collectives(
    strategy: ParallelStrategy,
    parameters: int,
    units: int,
    ranks: int,
    compute: int,
    reduce: int,
    synchronized: bool,
) -> list[tuple[Operator, int]]:
    """Return the collectives of one micro-step of `parameters` in `units` blocks, by strategy.

    `compute` and `reduce` are the bytes of one element as it is computed with and as its gradient is reduced. Without
    `synchronized` gradients stay where they are, as in all micro-steps but the last: under zero3 alone they are
    reduced in each, because no rank has room for them. Parameters are gathered once (zero1, zero2) or for forward
    and backward each (zero3); those of zero1 and zero2 after the optimizer step, which is counted here.
    """
    found: list[tuple[Operator, int]] = []

    def add(kind: OpKind, width: int, times: int) -> None:
        size = parameters * width // units
        found.append((Operator(kind, kind, "none", ranks, 0, size), units * times))

    match strategy:
        case "ddp" if synchronized:
            add("all_reduce", reduce, 1)
        case "zero1" | "zero2" if synchronized:
            add("reduce_scatter", reduce, 1)
            add("all_gather", compute, 1)
        case "zero3":
            add("all_gather", compute, 2)
            add("reduce_scatter", reduce, 1)
    return found
