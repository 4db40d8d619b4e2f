"""A stand-in for a CUDA device, on any build of torch: the choices that torch makes on CUDA, for fake tensors.

Fake tensors on a `cuda` device need a CUDA build, because autograd asks it for streams. The device here is
torch's spare backend ("PrivateUse1") under the name `gpu`, with device guards written in Python: nothing ever runs on
it, but autograd, autocast and every shape rule work, and device and host memory are told apart. On top of it come the
rules by which CUDA differs from other devices in what a training step allocates:

- autocast's lists of operators, with its cache of cast parameters (`autotune.worker.tracing.fakes.autocast`);
- attention goes to the flash or the memory-efficient kernel (`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`);
- dropout and RMS norm are one operator each, with the outputs of the CUDA kernel.

What kernels allocate for themselves is in `worker.tracing.kernel_workspace`. For cuDNN's attention, which torch prefers
on Hopper and later, the flash kernel stands: its outputs are the same, and its scratch is no smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from autotune.worker.replacing import replaced
from autotune.worker.tracing.fakes.autocast import HALF_TYPES, NAME, autocast_by_name, follow_autocast

aten = torch.ops.aten


class _Stream:
    """A stream, event and context of one, on which nothing ever runs."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        """Take what torch's streams take."""

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to restore."""

    def record(self, stream: object = None) -> None:
        """Nothing to remember."""

    def record_event(self, event: object = None) -> _Stream:  # noqa: ARG002 - the contract of streams
        return self

    def query(self) -> bool:
        return True

    def wait(self, stream: object = None) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing runs."""

    def wait_event(self, event: object) -> None:
        """Nothing to wait for."""

    def wait_stream(self, stream: object) -> None:
        """Nothing to wait for."""


class _Backend:
    """What torch asks of a device module."""

    Stream = _Stream
    Event = _Stream

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Nothing to seed: no number is ever drawn."""

    def current_stream(self, device: object = None) -> _Stream:  # noqa: ARG002 - the module's contract
        return _Stream()

    def stream(self, stream: _Stream) -> _Stream:
        return stream

    def synchronize(self, device: object = None) -> None:
        """Nothing runs, so there is nothing to wait for."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return list(HALF_TYPES)

    def get_rng_state(self, device: object = None) -> Tensor:  # noqa: ARG002 - the module's contract
        return torch.empty(16, dtype=torch.uint8, device="cpu")

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        """Checkpointing restores it before recomputing; there is none."""


# Operators that are composed of others on the CPU, and one kernel on CUDA.


def _dropout(tensor: Tensor, p: float, train: bool) -> Tensor:
    # aten/src/ATen/native/Dropout.cpp: the fused kernel is for 0 < p < 1 in training.
    if not train or p == 0 or tensor.numel() == 0:
        return tensor
    if p == 1:
        return tensor.mul(torch.zeros((), dtype=tensor.dtype, device=tensor.device))
    result: Tensor = aten.native_dropout(tensor, p, True)[0]
    return result


def _rms_norm(
    tensor: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    result: Tensor = aten._fused_rms_norm(tensor, shape, weight, eps)[0]
    return result


FLASH_HEAD_LIMIT = 256
"""Largest head of the flash kernel (`check_flash_attention_hardware_support`, `check_head_dim_size_flash`)."""


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Choose as `_fused_sdp_choice_cuda` does on compute capability 8.0 and later, and call that kernel."""
    head, heads, kv_heads = query.shape[-1], query.shape[-3], key.shape[-3]
    regular = query.dim() == key.dim() == value.dim() == 4
    flash = (
        regular
        and query.dtype in HALF_TYPES
        and attn_mask is None
        and value.shape[-1] == head <= FLASH_HEAD_LIMIT
        and (heads == kv_heads or enable_gqa)
    )
    if flash:
        return _flash(query, key, value, dropout_p, is_causal, scale)
    aligned = 8 if query.dtype in HALF_TYPES else 4
    efficient = regular and heads == kv_heads and head % aligned == 0 and value.shape[-1] % aligned == 0
    if efficient:
        bias = None if attn_mask is None else _bias(attn_mask, query, key)
        grad = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
        result: Tensor = aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, grad, dropout_p, is_causal, scale=scale
        )[0]
        return result
    math: Tensor = aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]
    return math


def _flash(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float, is_causal: bool, scale: float | None
) -> Tensor:
    head = query.shape[-1]
    if head % 8:  # pad_last_dim<8> in aten/src/ATen/native/transformers/attention.cpp
        scale = head**-0.5 if scale is None else scale
        padding = [0, 8 - head % 8]
        query, key, value = (torch.nn.functional.pad(part, padding) for part in (query, key, value))
    result: Tensor = aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return result[..., :head]


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Turn a mask into the kernel's bias: of the query's type, rows padded to a multiple of 16 elements."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    width = mask.shape[-1]
    if width % 16:  # preprocess_mask in aten/src/ATen/native/transformers/attention.cpp
        mask = torch.nn.functional.pad(mask, [0, 16 - width % 16])[..., :width]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


@cache
def _register() -> torch.library.Library:
    """Make the device known to torch; it stays known for as long as the process lives.

    autograd counts the devices at a process's first backward pass, and never again. Raises RuntimeError where that
    was before.
    """
    _setup_privateuseone_for_python_backend(NAME, _Backend())
    # Operators on none of autocast's lists pass through; for this backend torch leaves saying so to its maker.
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    with FakeTensorMode():
        probe = torch.empty((), device=torch.device(NAME, 0), requires_grad=True) * 1
        try:
            probe.backward()
        except RuntimeError as error:
            raise RuntimeError(
                "a backward pass ran in this process before the stand-in for CUDA was made; trace in a fresh process"
            ) from error
    return rest


@contextmanager
def fake_cuda() -> Iterator[torch.device]:
    """Provide the stand-in's device; within, its operators follow CUDA's rules."""
    _register()
    library = torch.library.Library("aten", "IMPL")
    casts = follow_autocast(library)
    library.impl("dropout", _dropout, "AutogradPrivateUse1")
    library.impl("scaled_dot_product_attention", _attention, "AutogradPrivateUse1")
    if hasattr(aten, "_fused_rms_norm"):
        library.impl("rms_norm", _rms_norm, "AutogradPrivateUse1")
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        clear()
        casts.clear()

    changes = [
        # autocast calls it, through this name, when its outermost region ends; its own cache is out of Python's reach.
        (torch, "clear_autocast_cache", clear_both),
        *autocast_by_name(),
    ]
    try:
        with replaced(changes):
            yield torch.device(NAME, 0)
    finally:
        library._destroy()
