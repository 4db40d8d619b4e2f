"""What batches, parameters and exceptions of torch tell, without importing it."""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any, Iterable  # noqa: UP035 - as Python 3.8 has them

_MOST = 50
"""Tensors of a batch that are looked at."""
_CPU_REFUSED = (
    "DefaultCPUAllocator: ", "std::bad_alloc", "Cannot allocate memory", "could not create a memory object",
    "could not create a primitive",
)  # fmt: skip
_GPU_REFUSED = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def refusal(error: BaseException | None, torch: Any) -> dict[str, Any] | None:
    """Return what an exception says of refused memory, its causes included; None where it is about something else.

    torch's CPU allocator raises a bare RuntimeError, of which only the text tells.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error)
        typed = isinstance(error, getattr(torch, "OutOfMemoryError", MemoryError))
        told = isinstance(error, RuntimeError) and any(
            sign in text for sign in (*_CPU_REFUSED, *_GPU_REFUSED)
        )
        if typed or told or isinstance(error, MemoryError):
            asked = re.search(r"tried to allocate (\d+) bytes", text)
            return {"requested": int(asked.group(1)) if asked else None, "message": text[:500]}
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def batch(given: Any) -> tuple[int | None, int | None, bool]:
    """Return samples, tokens, and whether these are whole numbers (token ids), of what a module was called with.

    `input_ids` stand for the batch, else its first tensor. Its first dimension are the samples; a matrix of whole
    numbers has a token in each place, and of anything else a sample counts for one. None where there is no tensor.
    """
    tensors: list[tuple[str, Any]] = []
    pending = [("", given)]
    while pending and len(tensors) < _MOST:
        name, item = pending.pop(0)
        if hasattr(item, "shape") and hasattr(item, "dtype"):
            if len(item.shape):
                tensors.append((name, item))
        elif hasattr(item, "items"):
            pending += [(str(key), part) for key, part in item.items()]
        elif isinstance(item, (list, tuple)):
            pending += [(name, part) for part in item]
    if not tensors:
        return None, None, False
    first = next((item for name, item in tensors if name == "input_ids"), tensors[0][1])
    whole = not getattr(first.dtype, "is_floating_point", True)
    samples = int(first.shape[0])
    return samples, math.prod(map(int, first.shape)) if whole and len(first.shape) == 2 else samples, whole


def number_types(torch: Any, module: Any) -> dict[str, Any]:
    """Return the number types of what trains and of autocast, as a forward pass finds them."""
    types = sorted({str(parameter.dtype).replace("torch.", "") for parameter in module.parameters()})
    autocast = None
    for device in ("cuda", "cpu"):
        with contextlib.suppress(TypeError, AttributeError, RuntimeError):
            if torch.is_autocast_enabled(device):
                autocast = str(torch.get_autocast_dtype(device)).replace("torch.", "")
    return {"parameters": types, "autocast": autocast}


def size(torch: Any, tensors: Iterable[Any]) -> int:
    """Return the bytes of tensors on this rank; what is none counts for nothing."""
    total = 0
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            local = getattr(tensor, "_local_tensor", tensor)  # a DTensor holds its shard there
            total += local.numel() * local.element_size()
    return total


def total_loss(losses: list[Any]) -> float | None:
    """Return the sum of what was given to backward in a step; None where it is no number."""
    try:
        return math.fsum(float(loss) for loss in losses) if losses else None
    except Exception:  # noqa: BLE001 - a framework's own kind of tensor: the loss is only told
        return None


def own_module(module: Any) -> Any:
    """Return the user's own module inside what compiles or distributes it."""
    for _ in range(4):
        inner = getattr(module, "_orig_mod", None) or getattr(module, "module", None)
        if inner is None or not hasattr(inner, "parameters"):
            break
        module = inner
    return module
