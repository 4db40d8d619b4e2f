"""Regional compilation: torch.compile for the repeated block alone, whose code is then shared by all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.environment import lacks_compiler
from autotune.techniques.blocks import no_block
from autotune.worker.blocks import Blocks
from autotune.worker.errors import CannotRun
from autotune.worker.replacing import replaced
from autotune.worker.techniques.compiled_weights import noting_weights

BACKEND = "inductor"
"""torch's own compiler: C++ for a processor, Triton for a GPU."""


def compile_blocks(
    blocks: Blocks | None, device: torch.device, kept: float = 1.0, noting: bool = False
) -> AbstractContextManager[None]:
    """Compile every block's forward at its first call, in place: the first is compiled, the others find its code.

    So start-up does not grow with the depth. Checkpoints and hooks go around it: inside of a compiled function torch
    gives up on a checkpoint that wraps a method, and runs it uncompiled without a word. `kept` is the memory budget:
    the share that is kept for backward, between what is kept for the fastest backward (1) and a block's inputs alone
    (0), as near as the compiler comes, which makes the rest again. With `noting` the copies of weights that a block
    keeps are known as such (`compiled_weights`). What is returned stays open as long as blocks are called. Raises
    CannotRun where no block was found, or no compiler; and, at the first call, where the budget would spoil gradients.
    """
    if blocks is None:
        raise CannotRun("compile", "context", no_block("compile"))
    if reason := lacks_compiler(device.type):
        raise CannotRun("compile", "compiler", reason)
    # In this process: a pool of compilers would be processes that import torch, for a single block.
    torch._inductor.config.compile_threads = 1
    for block in blocks.modules:
        compiled = compile_forward(_own_forward(block), noting)
        block.forward = compiled if kept == 1 else _looked_into(block, compiled)
    from torch._functorch import config

    # For every thread, unlike torch's own `patch`.
    changes: list[tuple[Any, str, Any]] = [
        # Else a block under DDP is cut where a bucket is full: more kernels, and gradients no sooner than by the block.
        (torch._dynamo.config, "optimize_ddp", False),
        (config, "activation_memory_budget", kept),
    ]
    if noting:  # a program from autograd's cache would note nothing
        changes.append((config, "enable_autograd_cache", False))
    return replaced(changes)


def _own_forward(block: nn.Module) -> Callable[..., Any]:
    """Return a block's forward as it was before FSDP2 gave the block a class of its own.

    A training compiles before it shards. A trace may find the block sharded, and transformers wraps the forward of that
    class too: to the compiler it would be another, and be compiled anew.
    """
    forward: Callable[..., Any] = block.forward
    # Some 30 MiB, which are there where anything is sharded.
    sharding = sys.modules.get("torch.distributed.fsdp")
    if sharding is not None and "forward" not in vars(block) and isinstance(block, sharding.FSDPModule):
        forward = super(sharding.FSDPModule, block).forward
    return forward


def compile_forward(forward: Callable[..., Any], noting: bool) -> Callable[..., Any]:
    """Return the forward that is compiled at its first call."""
    backend = noting_weights if noting and BACKEND == "inductor" else BACKEND
    compiled: Callable[..., Any] = torch.compile(forward, backend=backend)
    return compiled


def _looked_into(block: nn.Module, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward that looks for random operators at its first call, and is the compiled one from then on."""
    plain = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad(), _NothingRandom(type(block).__name__):
            plain(*args, **kwargs)
        block.forward = compiled
        return compiled(*args, **kwargs)

    return forward


class _NothingRandom(TorchDispatchMode):  # type: ignore[misc]  # mypy does not follow torch
    """Refuses operators that draw random numbers. Under a budget the compiler makes their results again with others.

    Gradients are then those of another mask than the loss, without a word (pytorch issue 190758, open; seen in 2.13).
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _share_dropped(func, args, kwargs) != 0:
            raise CannotRun(
                "activation_memory_budget",
                "context",
                f"{self._name} has dropout or draws other random numbers ({func}), and under a memory budget torch's "
                "compiler draws others when it makes results again, so gradients would be wrong: set dropout to 0 in "
                "the model's configuration, or leave the budget out",
            )
        return func(*args, **kwargs)


def _share_dropped(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the dropout that an operator is told, attention's say; None where it has no such argument."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name in {"p", "dropout_p"}:
            given = args[position] if position < len(args) else argument.default_value
            return kwargs.get(argument.name, given)
    return None
