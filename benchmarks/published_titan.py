"""Llama as torchtitan trained it in December 2024: its own model, selective checkpointing by operator, loss in float32.

It follows the operators of `torchtitan/models/llama/model.py` and the saved operators of
`torchtitan/parallelisms/parallelize_llama.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

Batch = Callable[[int, int], dict[str, Tensor]]
aten = torch.ops.aten
SAVED = (
    aten.mm.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
)
"""Operators whose outputs are kept; of the matrix products, every second one."""


class Sizes(NamedTuple):
    """What makes one Llama out of the others."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int


LLAMA_8B = Sizes(32, 4096, 32, 8, 14336, 128256)


def contexts() -> Any:
    """Return the contexts of one checkpoint: forward and recomputation."""
    products: dict[bool, int] = defaultdict(int)

    def policy(context: Any, operator: Any, *_: object, **__: object) -> CheckpointPolicy:
        if operator is aten.mm.default:
            products[context.is_recompute] += 1
            kept = products[context.is_recompute] % 2 == 1
        else:
            kept = operator in SAVED
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Turn pairs of neighbouring dimensions, as complex numbers in float32."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(3).to(x.dtype)


class Block(nn.Module):
    """One layer, checkpointed by operator."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        head = sizes.hidden // sizes.heads
        self.heads, self.kv_heads, self.head = sizes.heads, sizes.kv_heads, head
        self.norm_1, self.norm_2 = nn.RMSNorm(sizes.hidden, eps=1e-5), nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.query = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.key = nn.Linear(sizes.hidden, sizes.kv_heads * head, bias=False)
        self.value = nn.Linear(sizes.hidden, sizes.kv_heads * head, bias=False)
        self.out = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.gate = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.down = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        result: Tensor = checkpoint(
            self._run, x, angles, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
        )
        return result

    def _run(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self._attention(self.norm_1(x), angles)
        normed = self.norm_2(x)
        return x + self.down(functional.silu(self.up(normed)) * self.gate(normed))

    def _attention(self, x: Tensor, angles: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = self.query(x), self.key(x), self.value(x)
        query = turned(query.view(batch, length, self.heads, self.head), angles)
        key = turned(key.view(batch, length, self.kv_heads, self.head), angles)
        value = value.view(batch, length, self.kv_heads, self.head)
        key, value = (
            part[:, :, :, None].expand(-1, -1, -1, self.heads // self.kv_heads, -1).reshape(query.shape)
            for part in (key, value)
        )
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        result = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(result.transpose(1, 2).contiguous().view(batch, length, -1))


class Titan(nn.Module):
    """The model and its loss."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.enter = nn.Embedding(sizes.vocab, sizes.hidden)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.leave = nn.Linear(sizes.hidden, sizes.vocab, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        half = self.sizes.hidden // self.sizes.heads // 2
        angles = torch.ones(1, tokens.shape[1], 1, half, dtype=torch.complex64, device=tokens.device)
        x = self.enter(tokens)
        for block in self.blocks:
            x = block(x, angles)
        return functional.cross_entropy(self.leave(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def build(sizes: Sizes = LLAMA_8B) -> tuple[nn.Module, Batch]:
    """Return the model and what makes its batches."""

    def batch(micro_batch: int, seq_len: int) -> dict[str, Tensor]:
        tokens = torch.zeros(micro_batch, seq_len, dtype=torch.long)
        return {"tokens": tokens, "targets": tokens}

    return Titan(sizes), batch
