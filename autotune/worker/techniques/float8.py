"""Products of linear layers in 8-bit floats (Micikevicius et al. 2022), by torchao; everything else is as with bf16."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from autotune.worker.blocks import Blocks
from autotune.worker.errors import CannotRun, lacking

MULTIPLE = 16
"""Rows, columns and summed positions of an 8-bit product come in multiples of 16 (torch._scaled_mm)."""
FIRST = (8, 9)
"""NVIDIA's compute capability from which tensor cores multiply 8-bit floats (Ada and Hopper white papers)."""


def use_float8(model: nn.Module, blocks: Blocks | None, device: torch.device, tokens: int) -> None:
    """Let the linear layers of the blocks multiply in 8 bits, in place; their parameters stay what they were.

    Inputs and weights are rounded to 4 bits of exponent and 3 of fraction, gradients to 5 and 2, each tensor with one
    scale that its largest value sets anew each time (torchao's `tensorwise` recipe). Embeddings and head stay in 16
    bits. `tokens` are those of a micro-batch. Raises CannotRun where the device multiplies none, where there is no
    linear layer in a block, or where a size is no multiple of 16, and says which.
    """
    if reason := lacks_float8(device):
        raise CannotRun("precision", "device", reason)
    convert = converter()
    inside = {id(part) for block in (blocks.modules if blocks else ()) for part in block.modules()}
    chosen = {
        name: module
        for name, module in model.named_modules()
        if id(module) in inside and isinstance(module, nn.Linear)
    }
    if not chosen:
        raise CannotRun(
            "precision",
            "context",
            "fp8 needs a repeated block with nn.Linear layers (GPT-2's are transformers' Conv1D, which torchao leaves "
            "alone); name its class with --block-class",
        )
    for name, module in chosen.items():
        if module.in_features % MULTIPLE or module.out_features % MULTIPLE:
            raise CannotRun(
                "precision",
                "context",
                f"fp8 multiplies sizes that are multiples of {MULTIPLE}, and {name} is {module.in_features} x "
                f"{module.out_features}",
            )
    if tokens % MULTIPLE:
        raise CannotRun(
            "precision",
            "context",
            f"fp8 multiplies sizes that are multiples of {MULTIPLE}, and a micro-batch has {tokens} tokens: choose a "
            "--seq-len that is one",
        )
    convert(model, module_filter_fn=lambda _module, name: name in chosen)


def converter() -> Callable[..., object]:
    """Return torchao's function that converts a model, with one scale for a tensor. Raises CannotRun without it."""
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise lacking("precision", "fp8", "torchao", error) from error
    return partial(convert_to_float8_training, config=Float8LinearConfig())


def lacks_float8(device: torch.device) -> str | None:
    """Return why a device does not multiply 8-bit floats, or None."""
    if device.type != "cuda":
        return None  # whether a processor may is the caller's to say: it emulates them
    name = torch.cuda.get_device_name(device)
    if torch.version.hip is not None:
        from torchao.utils import is_MI300, is_MI350

        return None if is_MI300() or is_MI350() else f"{name} does not multiply 8-bit floats; MI300 does"
    if torch.cuda.get_device_capability(device) >= FIRST:
        return None
    return f"{name} does not multiply 8-bit floats; NVIDIA GPUs do from compute capability 8.9 on"
