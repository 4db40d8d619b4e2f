"""Activation checkpointing: keep what enters a block, recompute what happens inside during backward."""

from __future__ import annotations

from functools import partial

from torch.utils.checkpoint import checkpoint

from autotune.train.blocks import Blocks
from autotune.train.refusal import CannotRun


def checkpoint_blocks(blocks: Blocks | None) -> None:
    """Checkpoint every block, in place.

    The forward is wrapped and not the call, so that hooks (sharding's, say) run once and outside. The random
    state is replayed, so dropout is the same in the recomputation and the loss does not change. Raises
    CannotRun where no block was found.
    """
    if blocks is None:
        raise CannotRun(
            "no repeated transformer block was found to checkpoint; name its class with --block-class"
        )
    for block in blocks.modules:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
