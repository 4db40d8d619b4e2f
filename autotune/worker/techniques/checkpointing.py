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
from autotune.worker.techniques.activation_offload import ActivationOffload

aten = torch.ops.aten

KEPT = (
    "mm", "addmm", "_grouped_mm",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
)  # fmt: skip
"""Operators whose results selective checkpointing keeps: dear to compute, and no larger than a hidden state or two.

Products of batches (`bmm`) are not among them: in eager attention they are the scores, which grow with the square of
the sequence and are what Korthikanti et al. 2022 recompute."""

PRODUCTS = KEPT[:3]
"""Those of linear layers, of which alternate checkpointing keeps every other one."""

INTERVAL: dict[Checkpointing, int] = {
    "full": 1,
    "every-2": 2,
    "every-4": 4,
    "selective": 1,
    "alternate": 1,
    "offloaded": 1,
}
"""Of so many blocks, the last one is checkpointed."""


def checkpoint_blocks(
    blocks: Blocks | None, how: Checkpointing, offload: ActivationOffload | None = None
) -> None:
    """Checkpoint the blocks that `how` names, in place; with `offload` their inputs are kept where that keeps things.

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
    contexts: dict[str, Any] = {"context_fn": CHOOSING[how]} if how in CHOOSING else {}
    for block in chosen:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **contexts)
        if offload is not None:
            block.forward = partial(_keeping_elsewhere, block.forward, offload)


def _keeping_elsewhere(
    forward: Callable[..., Any], offload: ActivationOffload, *args: Any, **kwargs: Any
) -> Any:
    """Run a checkpointed block. What it saves itself goes to the checkpoint's own hooks: its inputs are left."""
    inputs = [
        value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.dim() > 2
    ]
    with offload.keeping(inputs[0].shape[0] if inputs else 1):
        return forward(*args, **kwargs)


def _selective() -> Any:
    return create_selective_checkpoint_contexts(_policy)


def _alternate() -> Any:
    """Keep what selective checkpointing does, less every second product (as torchtitan's selective checkpointing)."""
    products = {operator for operator in _kept() if operator.name().partition("::")[2] in PRODUCTS}
    seen = {False: 0, True: 0}  # forward and recomputation count for themselves, and meet the same operators

    def policy(context: Any, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operator in products:
            seen[context.is_recompute] += 1
            if seen[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return _policy(context, operator, *args, **kwargs)

    return create_selective_checkpoint_contexts(policy)


CHOOSING: dict[Checkpointing, Callable[[], Any]] = {"selective": _selective, "alternate": _alternate}
"""Ways of checkpointing that choose among the operators inside a block."""


def _policy(_context: Any, operator: Callable[..., Any], *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _kept() else CheckpointPolicy.PREFER_RECOMPUTE


@cache
def _kept() -> frozenset[Any]:
    packets = (getattr(aten, name, None) for name in KEPT)
    return frozenset(packet.default for packet in packets if packet is not None)
