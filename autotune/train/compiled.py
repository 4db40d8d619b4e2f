"""Regional compilation: torch.compile for the repeated block alone, whose code is then shared by all of them."""

from __future__ import annotations

import torch

from autotune.environment import lacks_compiler
from autotune.train.blocks import Blocks
from autotune.train.refusal import CannotRun

BACKEND = "inductor"
"""torch's own compiler: C++ for a processor, Triton for a GPU."""


def compile_blocks(blocks: Blocks | None, device: torch.device) -> None:
    """Compile every block's forward at its first call, in place: the first is compiled, the others find its code.

    So start-up does not grow with the depth. Checkpoints and hooks go around it: inside of a compiled function torch
    gives up on a checkpoint that wraps a method, and runs it uncompiled without a word. Raises CannotRun where no
    block was found, or no compiler.
    """
    if blocks is None:
        raise CannotRun(
            "no repeated transformer block was found to compile; name its class with --block-class"
        )
    if reason := lacks_compiler(device.type):
        raise CannotRun(reason)
    # In this process: a pool of compilers would be processes that import torch, for a single block.
    torch._inductor.config.compile_threads = 1
    for block in blocks.modules:
        block.forward = torch.compile(block.forward, backend=BACKEND)
