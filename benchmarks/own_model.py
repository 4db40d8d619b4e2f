"""A module that is nobody's architecture: what a user of autotune might bring."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Mixer(nn.Module):
    """A convolution over time and a gated feed-forward, both residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.time = nn.Conv1d(width, width, 5, padding=2, groups=8)
        self.gate = nn.Linear(width, 4 * width)
        self.back = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.time(self.norm(x).transpose(1, 2)).transpose(1, 2)
        left, right = self.gate(x).chunk(2, dim=-1)
        return x + self.back(torch.nn.functional.silu(left) * right)


class Regressor(nn.Module):
    """Predicts one number a position."""

    def __init__(self, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.enter = nn.Linear(16, width)
        self.layers = nn.ModuleList(Mixer(width) for _ in range(layers))
        self.leave = nn.Linear(width, 1)

    def forward(self, signal: Tensor, target: Tensor) -> Tensor:
        x = self.enter(signal)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.mse_loss(self.leave(x).squeeze(-1), target)


def build() -> tuple[nn.Module, Callable[[int, int], dict[str, Tensor]]]:
    """Return the module and what makes its batches."""

    def batch(micro_batch: int, seq_len: int) -> dict[str, Tensor]:
        return {"signal": torch.randn(micro_batch, seq_len, 16), "target": torch.randn(micro_batch, seq_len)}

    return Regressor(), batch
