"""LitGPT's model with adapters, as its tables of October 2023 trained it: all in bf16, the loss in float32.

It follows the operators of `lit_gpt/model.py`, `lora.py` and `adapter_v2.py` of that time, because they decide what is
kept for the backward pass. The number of trained parameters of each model equals the published one
(`tests/memory/test_published.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = Callable[[int, int], dict[str, Tensor]]
Tuning = Literal["lora", "adapter_v2"]

LORA_RANK, LORA_DROPOUT = 8, 0.05
PROMPT_LENGTH, FIRST_PROMPTED = 10, 2
"""Adapters: positions of the learnt prompt, and the first layer that has one."""
HEAD_CHUNK = 128
"""Positions at a time that the output layer and the loss work on."""


class Sizes(NamedTuple):
    """What LitGPT's configurations differ in."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    """Padded to a multiple of 512, for StableLM; of 64, for the others."""
    intermediate: int
    rotary: float = 1.0
    """Share of a head's dimensions that are rotated."""
    llama: bool = True
    """RMS norm, gated feed-forward, no biases; else layer norm, GELU, biases, attention beside the feed-forward."""
    shared_norm: bool = False
    """One norm for attention and feed-forward."""
    head_bias: bool = False


MODELS = {
    "phi-1.5": Sizes(24, 2048, 32, 51200, 8192, rotary=0.5, llama=False, shared_norm=True, head_bias=True),
    "StableLM-Alpha-3B": Sizes(16, 4096, 32, 50688, 16384, rotary=0.25, llama=False),
    "Llama-2-7B": Sizes(32, 4096, 32, 32000, 11008),
    "Llama-2-13B": Sizes(40, 5120, 40, 32000, 13824),
}


class Rms(nn.Module):
    """RMS norm of elementary operators, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        square = torch.mean(wide * wide, dim=-1, keepdim=True)
        return (self.weight * (wide * torch.rsqrt(square + 1e-5))).to(x.dtype)


class LoraQkv(nn.Linear):
    """Queries, keys and values in one frozen matrix, with adapters on queries and values."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__(width, 3 * width, bias=bias)
        self.tuned_a = nn.Parameter(torch.zeros(2 * LORA_RANK, width))
        self.tuned_b = nn.Parameter(torch.zeros(2 * width, LORA_RANK))
        self.where = torch.cat([torch.arange(width), torch.arange(2 * width, 3 * width)])

    def forward(self, x: Tensor) -> Tensor:
        whole = super().forward(x)
        inner = functional.linear(functional.dropout(x, LORA_DROPOUT, self.training), self.tuned_a)
        outer = functional.conv1d(inner.transpose(-2, -1), self.tuned_b.unsqueeze(-1), groups=2)
        outer = outer.transpose(-2, -1).transpose(0, 1)
        spread = outer.new_zeros((*outer.shape[:-1], self.out_features)).view(-1, self.out_features)
        spread = spread.index_copy(1, self.where.to(x.device), outer.reshape(-1, outer.shape[-1]))
        return whole + spread.view(*outer.shape[:-1], -1).transpose(0, 1) * 2.0


class ScaledLinear(nn.Linear):
    """A frozen matrix whose outputs get a trained bias and scale."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.tuned_bias = nn.Parameter(torch.zeros(outputs))
        self.tuned_scale = nn.Parameter(torch.ones(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.tuned_scale * (super().forward(x) + self.tuned_bias)


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn pairs of dimensions by their position's angle; in float32, as the angles are."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return ((x * cosine) + (turned * sine)).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention; with adapters of version 2, also to a learnt prompt."""

    def __init__(self, sizes: Sizes, tuning: Tuning, layer: int) -> None:
        super().__init__()
        width, bias = sizes.hidden, not sizes.llama
        self.heads = sizes.heads
        self.tuned_prompt: nn.Parameter | None = None
        self.qkv: nn.Module
        if tuning == "lora":
            self.qkv, self.leave = LoraQkv(width, bias), nn.Linear(width, width, bias=bias)
            return
        self.qkv, self.leave = ScaledLinear(width, 3 * width, bias), ScaledLinear(width, width, bias)
        if layer >= FIRST_PROMPTED:
            self.tuned_prompt = nn.Parameter(torch.zeros(PROMPT_LENGTH, width))
            self.tuned_gate = nn.Parameter(torch.zeros(1, 1, sizes.heads, 1))

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        query, key, value = self._split(x)
        turned = cosine.shape[-1]
        query, key = (
            torch.cat((rotated(part[..., :turned], cosine, sine), part[..., turned:]), dim=-1)
            for part in (query, key)
        )
        attend = functional.scaled_dot_product_attention
        result = attend(query, key, value, is_causal=True).transpose(1, 2)
        if self.tuned_prompt is not None:
            _, key, value = self._split(self.tuned_prompt[None])
            mask = torch.ones(x.shape[1], PROMPT_LENGTH, dtype=torch.bool, device=x.device)
            size = (x.shape[0], -1, -1, -1)
            prompted = attend(query, key.expand(size), value.expand(size), attn_mask=mask)
            result = result + self.tuned_gate * prompted.transpose(1, 2)
        return self.leave(result.reshape(x.shape))

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, self.heads, 3, width // self.heads).permute(0, 2, 3, 1, 4)
        return tuple(part.reshape(batch, self.heads, length, -1) for part in parts.split((1, 1, 1), dim=2))


class Block(nn.Module):
    """One layer."""

    def __init__(self, sizes: Sizes, tuning: Tuning, layer: int) -> None:
        super().__init__()
        width, bias = sizes.hidden, not sizes.llama
        linear = nn.Linear if tuning == "lora" else ScaledLinear
        norm = Rms if sizes.llama else nn.LayerNorm
        self.norm_1 = norm(width)
        self.attention = Attention(sizes, tuning, layer)
        self.norm_2 = None if sizes.shared_norm else norm(width)
        self.up = linear(width, sizes.intermediate, bias)
        self.gate = linear(width, sizes.intermediate, False) if sizes.llama else None
        self.down = linear(sizes.intermediate, width, bias)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        normed = self.norm_1(x)
        attended = self.attention(normed, cosine, sine)
        if self.gate is None:
            second = normed if self.norm_2 is None else self.norm_2(x)
            return self.down(functional.gelu(self.up(second), approximate="tanh")) + attended + x
        assert self.norm_2 is not None, "only models of the other kind share a norm"
        x = attended + x
        second = self.norm_2(x)
        up, gate = self.up(second), self.gate(second)
        return self.down(functional.silu(up) * gate) + x


class LitGpt(nn.Module):
    """The model and its loss, both over the output layer's chunks."""

    def __init__(self, sizes: Sizes, tuning: Tuning) -> None:
        super().__init__()
        self.turned = round(sizes.rotary * (sizes.hidden // sizes.heads))
        self.enter = nn.Embedding(sizes.vocab, sizes.hidden)
        self.blocks = nn.ModuleList(Block(sizes, tuning, layer) for layer in range(sizes.layers))
        self.norm = (Rms if sizes.llama else nn.LayerNorm)(sizes.hidden)
        linear = nn.Linear if tuning == "lora" else ScaledLinear
        self.leave = linear(sizes.hidden, sizes.vocab, sizes.head_bias)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("tuned_" in name or (tuning == "adapter_v2" and "norm" in name))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        # Float32: they are made anew outside of the context that sets the precision.
        angles = torch.zeros(tokens.shape[1], self.turned, device=tokens.device, dtype=torch.float32)
        cosine, sine = angles.cos(), angles.sin()
        x = self.enter(tokens)
        for block in self.blocks:
            x = block(x, cosine, sine)
        x = self.norm(x)
        # Fabric gives a module's outputs back in float32 (`convert_output` of its precision plug-in), all chunks at
        # once, and they stay referred to until the step ends.
        logits = [part.float() for part in [self.leave(part) for part in x.split(HEAD_CHUNK, dim=1)]]
        logits[-1] = logits[-1][..., :-1, :]
        losses = [
            functional.cross_entropy(part.reshape(-1, part.shape[-1]), target.reshape(-1), reduction="none")
            for part, target in zip(logits, targets[:, 1:].split(HEAD_CHUNK, dim=1), strict=True)
        ]
        return torch.cat(losses).mean()


@contextmanager
def in_bf16() -> Iterator[None]:
    """Make new parameters in bf16."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def build(name: str, tuning: Tuning) -> tuple[nn.Module, Batch]:
    """Return a model of `MODELS` and what makes its batches."""
    with in_bf16():
        model = LitGpt(MODELS[name], tuning)

    def batch(micro_batch: int, seq_len: int) -> dict[str, Tensor]:
        tokens = torch.zeros(micro_batch, seq_len, dtype=torch.long)
        return {"tokens": tokens, "targets": tokens}

    return model, batch
