"""What the kernels compute that torch's compiler makes of a graph, beside the products it leaves to others.

The compiler divides a graph among kernels as it likes; what they compute together it does not change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, fx


@dataclass(frozen=True)
class FusedWork:
    """Elements of all kernels of a graph together."""

    pointwise: int = 0
    """Written by pointwise operators, casts among them; one FLOP each, as in eager mode. Reductions count for nothing:
    what they read was written by a pointwise operator as a rule, which counts."""
    random: int = 0
    """Random numbers drawn."""

    def __add__(self, other: FusedWork) -> FusedWork:
        return FusedWork(self.pointwise + other.pointwise, self.random + other.random)

    @classmethod
    def of(cls, graph: fx.Graph) -> FusedWork:
        """Count the work of a graph of which the compiler is about to make kernels; its sizes are numbers."""
        pointwise = random = 0
        for node in graph.nodes:
            if node.target is torch.ops.prims.inductor_random.default:
                random += math.prod(node.args[0])
            elif isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags:
                made = node.meta.get("val")
                pointwise += made.numel() if isinstance(made, Tensor) else 0
        return cls(pointwise, random)
