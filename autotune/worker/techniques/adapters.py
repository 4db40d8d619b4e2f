"""LoRA (Hu et al. 2021): weights stay as they are, and small matrices beside the linear layers are trained."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from autotune.worker.blocks import Blocks
from autotune.worker.errors import CannotRun, lacking
from autotune.worker.techniques.precision import cast_parameter

RANK = 16
"""Width of the adapters, and twice that their scale: what QLoRA's and LoRA's users commonly start from."""


def add_adapters(model: nn.Module, blocks: Blocks | None) -> None:
    """Freeze the model and put an adapter beside every linear layer of its blocks, in place.

    The second matrix of each starts at zero, so the model computes what it did. Raises CannotRun where peft is not
    installed, or where no block with a linear layer was found. Not covered: experts that are one tensor.
    """
    peft = library()
    names = _linear_layers(model, blocks)
    if not names:
        raise CannotRun(
            "adapters",
            "context",
            "LoRA needs a repeated block with linear layers; name its class with --block-class",
        )
    config = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=names, lora_dropout=0.0, bias="none")
    weight = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
    with torch.device(weight.device), _made_in_place():
        peft.inject_adapter_in_model(config, model)
    for parameter in model.parameters():
        cast_parameter(parameter, weight.dtype)


def library() -> Any:
    """Return peft, with what it imports itself where it is first used. Raises CannotRun where it is missing."""
    try:
        peft = importlib.import_module("peft")
    except ImportError as error:
        raise lacking("adapters", "LoRA", "peft", error) from error
    with suppress(ImportError):
        importlib.import_module("bitsandbytes")
    return peft


@contextmanager
def _made_in_place() -> Iterator[None]:
    """Keep peft from moving adapters that are where they belong: torch refuses to move fake parameters of a trace."""
    move = nn.Module.to
    nn.Module.to = lambda module, *_, **__: module
    try:
        yield
    finally:
        nn.Module.to = move


def _linear_layers(model: nn.Module, blocks: Blocks | None) -> list[str]:
    from transformers.pytorch_utils import Conv1D

    inside = {id(part) for block in (blocks.modules if blocks else ()) for part in block.modules()}
    kinds: tuple[Any, ...] = (nn.Linear, Conv1D)
    return [
        name for name, module in model.named_modules() if id(module) in inside and isinstance(module, kinds)
    ]
