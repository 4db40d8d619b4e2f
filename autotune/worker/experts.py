"""Chosen experts of a mixture: rows of the one tensor that holds all experts of a layer, trained without the others.

transformers keeps the experts of a layer in tensors of [experts, ...], and computes with them whole. So the tensor
stays as it is, frozen, and each chosen expert is a parameter that shares its row's memory: an update in place reaches
the whole, nothing is copied in forward, and gradients and optimizer state exist for the chosen alone. In backward the
gradient of one whole tensor exists for a moment, of which the chosen rows are kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from autotune.candidate import Candidate
from autotune.techniques.check import Refusal
from autotune.techniques.sharding import SHARDINGS


def experts_in(module: nn.Module) -> int | None:
    """Return the number of experts that a module keeps as rows of its own tensors; None where it keeps none so."""
    count = getattr(module, "num_experts", None)
    own = list(module.parameters(recurse=False))
    stacked = bool(own) and all(p.dim() > 1 and p.shape[0] == count for p in own)
    # A router has a row for each expert too, but its tensor is a matrix.
    return count if stacked and any(p.dim() > 2 for p in own) else None


def choose(module: nn.Module, experts: tuple[int, ...]) -> list[nn.Parameter]:
    """Freeze a module's own tensors, make parameters of some of its experts (see `experts_in`), and return these."""
    made: list[nn.Parameter] = []
    for name, whole in list(module.named_parameters(recurse=False)):
        rows = ChosenRows(whole, experts)
        whole.requires_grad_(False)
        parametrize.register_parametrization(module, name, rows, unsafe=True)
        made += rows.parameters()
    return made


class ChosenRows(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """What stands between a frozen tensor of all experts and whoever computes with it: the way of the gradients."""

    def __init__(self, whole: Tensor, experts: tuple[int, ...]) -> None:
        super().__init__()
        self._experts = experts
        self.rows = nn.ParameterDict(
            {str(expert): nn.Parameter(whole.detach()[expert]) for expert in experts}
        )

    def forward(self, whole: Tensor) -> Tensor:
        """Return the whole tensor, whose gradient reaches the chosen rows alone."""
        result: Tensor = _Rows.apply(*self.rows.values(), whole, self._experts)
        return result


class _Rows(torch.autograd.Function):  # type: ignore[misc]  # mypy does not follow torch
    """Gives the whole tensor for its rows, whose gradients are rows of its gradient."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *_, whole, ctx.experts = arguments
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        # Copies: a view would keep the whole gradient.
        rows = (upstream[0][expert].clone(memory_format=torch.contiguous_format) for expert in ctx.experts)
        return *rows, None, None


def shared_rows(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters of a model whose memory is part of another one's."""
    return {
        row for module in model.modules() if isinstance(module, ChosenRows) for row in module.parameters()
    }


def parameter_count(model: nn.Module) -> int:
    """Return how many numbers a model's parameters hold; those that DeepSpeed has sharded, over all ranks."""
    shared = shared_rows(model)
    own = (parameter for parameter in model.parameters() if parameter not in shared)
    return sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in own)


def inseparable(candidate: Candidate, copies: bool, source: str) -> Refusal | None:
    """Return why chosen experts cannot train under a candidate, or None; `copies` is how its offload works."""
    apart = {
        "sharding": SHARDINGS[candidate.sharding].optimizer_state,
        "tensor_parallel": candidate.tensor_parallel > 1,
        "offload": candidate.offload == "full" and copies,
    }
    if axis := next((axis for axis, parted in apart.items() if parted), None):
        reason = (
            "chosen experts share the memory of the tensor that they are rows of, and what shards parameters gives "
            "each memory of its own; train whole layers, or share the work out by ddp alone"
        )
        return Refusal(axis, "context", (), reason)
    if candidate.compile != "none":
        reason = (
            "compiled blocks were not tried with chosen experts; leave out compile, or train whole layers"
        )
        return Refusal("compile", "context", (), reason)
    if candidate.precision == "bf16-pure" and source == "function":
        reason = "a function's model is cast once it is built, which parts chosen experts from their tensor"
        return Refusal("precision", "context", (), reason)
    return None
