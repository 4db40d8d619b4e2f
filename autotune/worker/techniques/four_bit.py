"""Frozen weights in 4 bits (NF4, Dettmers et al. 2023), made whole for each product: the base that QLoRA trains on."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from autotune.worker.blocks import Blocks
from autotune.worker.errors import CannotRun, lacking
from autotune.worker.techniques.mapped_files import is_mapped

BLOCK = 64
"""Weights that share a scale (fp32), as QLoRA has it: 4.5 bits a weight. Scales are not quantized again: bitsandbytes
reads a value to do so, which a trace does not know."""


def quantize_blocks(
    model: nn.Module, blocks: Blocks | None, device: torch.device, dtype: torch.dtype
) -> None:
    """Freeze the model, put the linear layers of its blocks into 4 bits on `device`, and move the rest there.

    The model may have been built elsewhere (host, mapped files), so that it is never whole on the device. Products
    are made in `dtype`. Raises CannotRun where bitsandbytes is not installed or no linear layer was found.
    """
    try:
        functional = importlib.import_module("bitsandbytes").functional
    except ImportError as error:
        raise lacking("adapters", "QLoRA", "bitsandbytes", error) from error
    inside = {id(part) for block in (blocks.modules if blocks else ()) for part in block.modules()}
    linear = [
        (name, part)
        for name, part in model.named_modules()
        if id(part) in inside and _weight(part) is not None
    ]
    if not linear:
        raise CannotRun(
            "adapters",
            "context",
            "QLoRA needs a repeated block with linear layers; name its class with --block-class",
        )
    for name, module in linear:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, FourBitLinear(module, functional, device, dtype))
    move(model, device)
    for parameter in model.parameters():
        parameter.requires_grad_(False)


class FourBitLinear(nn.Linear):  # type: ignore[misc]  # mypy does not follow torch
    """A linear layer whose weight is kept in 4 bits. It is an nn.Linear for whoever puts adapters beside such."""

    def __init__(self, source: nn.Module, functional: Any, device: torch.device, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        whole = _weight(source)
        assert whole is not None
        self.out_features, self.in_features = whole.shape
        self.dtype = dtype
        self._functional = functional
        packed, self.state = functional.quantize_4bit(
            whole.to(device, dtype).contiguous(), blocksize=BLOCK, quant_type="nf4", compress_statistics=False
        )
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias: Any = source.bias

    def whole(self) -> Tensor:
        """Return the weight that products are made with."""
        weight: Tensor = self._functional.dequantize_4bit(self.weight.data, self.state)
        return weight.to(self.dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Multiply by the dequantized weight, which is not kept for backward."""
        product: Tensor = _Product.apply(input.to(self.dtype), self)
        return product if self.bias is None else product + self.bias.to(self.dtype)


class _Product(torch.autograd.Function):  # type: ignore[misc]  # mypy does not follow torch
    """Makes the weight whole in forward and again in backward, and keeps it in between in 4 bits."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, layer: FourBitLinear) -> Tensor:
        ctx.layer = layer
        return nn.functional.linear(rows, layer.whole())

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None
        return upstream[0] @ ctx.layer.whole(), None


def move(model: nn.Module, device: torch.device) -> None:
    """Move parameters and buffers to a device, out of mapped files too, one by one; what is shared stays shared."""
    moved: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or (parameter.device == device and not is_mapped(parameter)):
                continue
            if id(parameter) not in moved:
                there = (
                    parameter.detach().clone()
                    if parameter.device == device
                    else parameter.detach().to(device)
                )
                moved[id(parameter)] = nn.Parameter(there, requires_grad=parameter.requires_grad)
            module._parameters[name] = moved[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


def _weight(module: nn.Module) -> Tensor | None:
    """Return a linear layer's weight as [out, in]; None for other modules."""
    from transformers.pytorch_utils import Conv1D

    if type(module) is nn.Linear:
        return module.weight.detach()
    return module.weight.detach().t() if isinstance(module, Conv1D) else None
