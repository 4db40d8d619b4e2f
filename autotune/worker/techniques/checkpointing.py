"""Activation checkpointing: keep what enters a block, recompute what happens inside during backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from autotune.candidate import Checkpointing
from autotune.worker.blocks import Blocks
from autotune.worker.errors import CannotRun

aten = torch.ops.aten

KEPT = (
    "mm", "addmm", "_grouped_mm",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
)  # fmt: skip
"""Operators whose results selective checkpointing keeps: dear to compute, and no larger than a hidden state or two.

Products of batches (`bmm`) are not among them: in eager attention they are the scores, which grow with the square of
the sequence and are what Korthikanti et al. 2022 recompute."""

INTERVAL: dict[Checkpointing, int] = {"full": 1, "every-2": 2, "every-4": 4, "selective": 1}
"""Of so many blocks, the last one is checkpointed."""


def checkpoint_blocks(blocks: Blocks | None, how: Checkpointing) -> None:
    """Checkpoint the blocks that `how` names, in place.

    The forward is wrapped and not the call, so that hooks (sharding's, say) run once and outside. The random
    state is replayed, so dropout is the same in the recomputation and the loss does not change. Raises
    CannotRun where no block was found, or fewer than an interval.
    """
    if blocks is None:
        raise CannotRun(
            "no repeated transformer block was found to checkpoint; name its class with --block-class"
        )
    interval = INTERVAL[how]
    chosen = blocks.modules[interval - 1 :: interval]
    if not chosen:
        raise CannotRun(f"the model has {len(blocks.modules)} blocks, fewer than {how} asks for")
    contexts: dict[str, Any] = {"context_fn": _selective} if how == "selective" else {}
    for block in chosen:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **contexts)


def _selective() -> Any:
    return create_selective_checkpoint_contexts(_policy)


def _policy(_context: Any, operator: Callable[..., Any], *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _kept() else CheckpointPolicy.PREFER_RECOMPUTE


@cache
def _kept() -> frozenset[Any]:
    packets = (getattr(aten, name, None) for name in KEPT)
    return frozenset(packet.default for packet in packets if packet is not None)
