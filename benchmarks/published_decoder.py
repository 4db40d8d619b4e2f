"""The plain decoder that MosaicML's llm-foundry benchmarks as MPT, of any size."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Shape(NamedTuple):
    """The dimensions of a plain decoder."""

    hidden: int
    layers: int
    heads: int
    vocab: int


class Block(nn.Module):
    """A block of MPT without biases, with fused attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.hidden
        self.heads = shape.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Decoder(nn.Module):
    """MPT as MosaicML's llm-foundry benchmarks it, its layer norms in the type of everything else."""

    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.positions = nn.Embedding(length, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions.weight[: input_ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


shape = Shape(64, 2, 2, 128)
"""Of the model that `decoder` builds; set before it is called."""
longest = 65536
"""Positions that it has embeddings for."""


def decoder() -> tuple[nn.Module, object]:
    """Return the decoder of `shape`."""

    def batch(micro_batch: int, seq_len: int) -> dict[str, Tensor]:
        tokens = torch.zeros(micro_batch, seq_len, dtype=torch.long)
        return {"input_ids": tokens, "labels": tokens.clone()}

    return Decoder(shape, longest), batch
