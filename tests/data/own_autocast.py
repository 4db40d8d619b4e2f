"""A user's own model that opens autocast itself, in each of the ways that people write it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.data.own_model import Network, make_batch


class Casting(Network):
    """Computes its loss within a region of autocast that it opens itself."""

    def __init__(self, region: object) -> None:
        super().__init__(width=64)
        self._region = region

    def forward(self, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
        with self._region(tokens):
            return super().forward(tokens, targets)


def plain() -> tuple[nn.Module, object]:
    """Open none: autotune's own is around it where the candidate says so."""
    return Network(width=64), make_batch


def by_name() -> tuple[nn.Module, object]:
    return Casting(lambda _: torch.autocast("cuda", torch.bfloat16)), make_batch


def by_old_name() -> tuple[nn.Module, object]:
    return Casting(lambda _: torch.cuda.amp.autocast(dtype=torch.bfloat16)), make_batch


def by_device() -> tuple[nn.Module, object]:
    return Casting(lambda tokens: torch.autocast(tokens.device.type, torch.bfloat16)), make_batch


def decorated() -> tuple[nn.Module, object]:
    model = Network(width=64)
    model.forward = torch.autocast("cuda", torch.bfloat16)(model.forward)
    return model, make_batch


def in_fp16() -> tuple[nn.Module, object]:
    """Leave the type to torch, which takes fp16 on CUDA."""
    return Casting(lambda _: torch.autocast("cuda")), make_batch


def by_availability() -> tuple[nn.Module, object]:
    """Choose by whether this process sees a GPU, which a trace does not."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    return Casting(lambda _: torch.autocast(kind, torch.bfloat16)), make_batch
