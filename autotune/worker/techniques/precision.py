"""Precision of the forward and backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from autotune.candidate import Precision
from autotune.worker.errors import CannotRun
from autotune.worker.training import Batch


def compute_in(
    precision: Precision, device: torch.device, keep_casts: bool = True
) -> Callable[[], AbstractContextManager[object]]:
    """Return a function that opens the context in which a forward pass runs in `precision`.

    `bf16` is torch's autocast over fp32 parameters: matrix products in bf16, reductions and the loss in fp32,
    gradients and optimizer state in fp32. `keep_casts` lets autocast keep the bf16 copy of a parameter until the pass
    ends. `fp8` is the same, for linear layers that multiply in 8 bits within (`techniques.float8`). `fp16` is the
    same with fp16, for which `techniques.loss_scaling` scales the loss. Raises CannotRun on a GPU that only emulates
    bf16; a CPU always runs both, if slowly.
    """
    if precision == "fp32":
        return nullcontext
    if precision == "fp16":
        return lambda: torch.autocast(device.type, torch.float16, cache_enabled=keep_casts)
    _check(device)
    if precision == "bf16-pure":
        return nullcontext
    return lambda: torch.autocast(device.type, torch.bfloat16, cache_enabled=keep_casts)


@contextmanager
def fp32_products(how: str) -> Iterator[None]:
    """While open, torch multiplies fp32 matrices with this precision: `high` is TF32 on NVIDIA GPUs from Ampere on."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(how)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def math_dtype(precision: Precision) -> torch.dtype:
    """Return the type that matrix products are made in."""
    return {"fp32": torch.float32, "fp16": torch.float16}.get(precision, torch.bfloat16)


def _check(device: torch.device) -> None:
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name(device)
        raise CannotRun(
            "precision",
            "device",
            f"{name} does not compute in bf16; NVIDIA GPUs do from compute capability 8.0 on",
        )


@contextmanager
def born_in(dtype: torch.dtype) -> Iterator[None]:
    """While open, every floating-point parameter that a module registers is cast at once, one by one."""

    def cast(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            cast_parameter(parameter, dtype)

    handle = register_module_parameter_registration_hook(cast)
    try:
        yield
    finally:
        handle.remove()


def cast_parameter(parameter: nn.Parameter, dtype: torch.dtype) -> None:
    """Keep a floating-point parameter in another type, in place."""
    if parameter.is_floating_point() and parameter.dtype != dtype:
        parameter.data = parameter.data.to(dtype)


def cast_inputs(batch: Batch, dtype: torch.dtype) -> Batch:
    """Return the batch with its floating-point tensors (images, say) in the model's type."""
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in batch.items()}
