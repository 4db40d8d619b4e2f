"""Precision of the forward and backward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from autotune.candidate import Precision
from autotune.train.refusal import CannotRun


def compute_in(
    precision: Precision, device: torch.device, keep_casts: bool = True
) -> Callable[[], AbstractContextManager[object]]:
    """Return a function that opens the context in which a forward pass runs in `precision`.

    `bf16` is torch's autocast over fp32 parameters: matrix products in bf16, reductions and the loss in
    fp32, gradients and optimizer state in fp32. `keep_casts` lets autocast keep the bf16 copy of a parameter
    until the pass ends. Raises CannotRun on a GPU that only emulates bf16; a CPU always runs it, if slowly.
    """
    if precision == "fp32":
        return nullcontext
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name(device)
        raise CannotRun(f"{name} does not compute in bf16; NVIDIA GPUs do from compute capability 8.0 on")
    return lambda: torch.autocast(device.type, torch.bfloat16, cache_enabled=keep_casts)
