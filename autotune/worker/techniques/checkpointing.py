"""Activation checkpointing: keep what enters a block, recompute what happens inside during backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from autotune.candidate import Candidate, Checkpointing
from autotune.techniques.blocks import no_block
from autotune.techniques.checkpointing import more_blocks_than
from autotune.worker.blocks import Blocks
from autotune.worker.errors import CannotRun
from autotune.worker.techniques.activation_offload import ActivationOffload

aten = torch.ops.aten

GROUPED = "_grouped_mm"
KEPT = (
    "mm", "addmm", GROUPED,
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
)  # fmt: skip
"""Operators whose results selective checkpointing keeps: dear to compute, and no larger than a hidden state or two.

Products of batches (`bmm`) are not among them: in eager attention they are the scores, which grow with the square of
the sequence and are what Korthikanti et al. 2022 recompute."""

PRODUCTS = KEPT[:3]
"""Those of linear layers, of which alternate checkpointing keeps every other one."""


def checkpoint_blocks(
    blocks: Blocks | None, candidate: Candidate, offload: ActivationOffload | None = None
) -> None:
    """Checkpoint as many blocks as the candidate asks for, in place, from the first on.

    Of any k blocks the first ones take least. Memory is fullest when forward ends and backward begins: with the
    logits, and what the blocks keep, which is as much whichever are checkpointed. Backward then comes to the last
    block first. Is that a checkpointed one, its activations are made again beside all that the others still keep, and
    the peak is a block higher. If not, it frees what it kept, and when backward comes to the first blocks there is
    room to compute them again (and for the gradients that were made meanwhile). Megatron-LM's
    `--recompute-method block` takes the first ones too.

    With `offload` the inputs of blocks are kept where that keeps things. The forward is wrapped and not the call, so
    that hooks (sharding's, say) run once and outside. The random state is replayed, so dropout is the same in the
    recomputation and the loss does not change. Raises CannotRun where no block was found, or no more than are to be
    checkpointed.
    """
    how = candidate.checkpointing
    if blocks is None:
        raise CannotRun("checkpointing", "context", no_block("checkpoint"))
    if reason := more_blocks_than(candidate, len(blocks.modules)):
        raise CannotRun("checkpointed_blocks", "context", reason)
    count = None if candidate.checkpointed_blocks == "all" else candidate.checkpointed_blocks
    contexts: dict[str, Any] = {}
    if how in CHOOSING:
        contexts["context_fn"] = partial(CHOOSING[how], _kept(_adds_in_place(blocks)))
    for block in blocks.modules[:count]:
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


def _selective(kept: frozenset[Any]) -> Any:
    return create_selective_checkpoint_contexts(_with_views(partial(_policy, kept)))


def _alternate(kept: frozenset[Any]) -> Any:
    """Keep what selective checkpointing does, less every second product (as torchtitan's selective checkpointing)."""
    products = {operator for operator in kept if operator.name().partition("::")[2] in PRODUCTS}
    seen = {False: 0, True: 0}  # forward and recomputation count for themselves, and meet the same operators

    def policy(context: Any, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operator in products:
            seen[context.is_recompute] += 1
            if seen[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return _policy(kept, context, operator, *args, **kwargs)

    return create_selective_checkpoint_contexts(_with_views(policy))


CHOOSING: dict[Checkpointing, Callable[[frozenset[Any]], Any]] = {
    "selective": _selective,
    "alternate": _alternate,
}
"""Ways of checkpointing that choose among the operators inside a block, by those whose results are kept."""


def _with_views(policy: Callable[..., CheckpointPolicy]) -> Callable[..., CheckpointPolicy]:
    """Keep the view too in which a product that is kept leaves `matmul`, and nothing more: they share their memory.

    torch refuses what was kept and then changed in place, which it tells by the tensor's version. `_unsafe_view` gives
    a tensor with a version of its own: without this, `x = linear(hidden); x += hidden` of three dimensions is added to
    once more in the recomputation, and gradients are wrong without a word (torch 2.13).
    """
    last = {False: CheckpointPolicy.PREFER_RECOMPUTE, True: CheckpointPolicy.PREFER_RECOMPUTE}

    def with_views(context: Any, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> CheckpointPolicy:
        repeats = context.is_recompute
        if operator is not aten._unsafe_view.default:
            last[repeats] = policy(context, operator, *args, **kwargs)
        return last[repeats]

    return with_views


def _policy(
    kept: frozenset[Any], _context: Any, operator: Callable[..., Any], *_args: Any, **_kwargs: Any
) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE


def _adds_in_place(blocks: Blocks) -> bool:
    """Tell whether transformers adds a bias to products of experts in place (gpt-oss): to kept ones, it would twice."""
    return any(getattr(part, "has_bias", False) for block in blocks.modules for part in block.modules())


@cache
def _kept(adds_in_place: bool) -> frozenset[Any]:
    names = (name for name in KEPT if not (adds_in_place and name == GROUPED))
    packets = (getattr(aten, name, None) for name in names)
    return frozenset(packet.default for packet in packets if packet is not None)
