"""A stand-in for a CUDA device, on any build of torch: the choices that torch makes on CUDA, for fake tensors.

Fake tensors on a `cuda` device need a CUDA build, because autograd asks it for streams. The device here is
torch's spare backend ("PrivateUse1") under the name `gpu`, with guards written in Python: nothing ever runs on it,
but autograd, autocast and every shape rule work, and device and host memory are told apart. On top of it come the
rules by which CUDA differs from other devices in what a training step allocates:

- autocast's lists of operators (`aten/src/ATen/autocast_mode.h`), with its cache of cast parameters;
- attention goes to the flash or the memory-efficient kernel (`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`);
- dropout and RMS norm are one operator each, with the outputs of the CUDA kernel.

What kernels allocate for themselves is in `autotune.train.scratch`. Not covered: cuDNN's attention, which torch prefers
on Hopper and later; its outputs are those of the flash kernel.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "gpu"
"""torch's name of the stand-in's device type."""

aten = torch.ops.aten
_LOW_PRECISION = (torch.bfloat16, torch.float16)


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
        return list(_LOW_PRECISION)

    def get_rng_state(self, device: object = None) -> Tensor:  # noqa: ARG002 - the module's contract
        return torch.empty(16, dtype=torch.uint8, device="cpu")

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        """Checkpointing restores it before recomputing; there is none."""


# Autocast: the lists of aten/src/ATen/autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP and so on.

LOWER_PRECISION = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "_scaled_dot_product_flash_attention",
    "scaled_dot_product_attention",
)  # fmt: skip
FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div",
    "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist",
    "pdist", "cdist", "renorm", "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d",
    "upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d",
    "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d",
    "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip
FLOAT32_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip
"""Given `dtype=float32` where the caller gave none."""
PROMOTE = (
    "stack", "cat", "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put",
    "tensordot", "scatter_add",
)  # fmt: skip
"""Run in the widest type among the arguments."""


class _Casts:
    """Autocast's cache: one low-precision copy of each parameter, until the outermost region ends."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def lower(self, tensor: Tensor) -> Tensor:
        """Cast as `cached_cast` does: copies of leaves that need gradients are kept."""
        dtype = torch.get_autocast_dtype(NAME)
        if not _eligible(tensor) or tensor.dtype == dtype:
            return tensor
        kept = (
            tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not kept:
            return tensor.to(dtype)
        known = self._copies.get(id(tensor))
        if known is None or known[0]() is not tensor:
            known = self._copies[id(tensor)] = (weakref.ref(tensor), tensor.to(dtype))
        return known[1]

    def clear(self) -> None:
        self._copies.clear()


def _eligible(tensor: Tensor) -> bool:
    return bool(tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type == NAME)


def _raised(tensor: Tensor) -> Tensor:
    return tensor.float() if _eligible(tensor) and tensor.dtype in _LOW_PRECISION else tensor


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _in_lower(op: Any, casts: _Casts, *args: Any, **kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        args, kwargs = tree_map_only(Tensor, casts.lower, (args, kwargs))
        return op(*args, **kwargs)


def _in_float32(op: Any, *args: Any, **kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        args, kwargs = tree_map_only(Tensor, _raised, (args, kwargs))
        return op(*args, **kwargs)


def _to_float32(op: Any, *args: Any, **kwargs: Any) -> Any:
    given = kwargs.get("dtype") is not None or any(isinstance(value, torch.dtype) for value in args)
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        if not given and isinstance(args[0], Tensor) and _eligible(args[0]):
            return op(*args, **{**kwargs, "dtype": torch.float32})
        return op(*args, **kwargs)


def _promoted(op: Any, *args: Any, **kwargs: Any) -> Any:
    found: set[torch.dtype] = set()
    tree_map_only(Tensor, lambda value: found.add(value.dtype) if _eligible(value) else None, (args, kwargs))
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        if len(found) > 1:
            widest = torch.float32 if torch.float32 in found else next(iter(found))
            args, kwargs = tree_map_only(
                Tensor, lambda value: value.to(widest) if _eligible(value) else value, (args, kwargs)
            )
        return op(*args, **kwargs)


def _norm_in_float32(op: Any, *args: Any, **kwargs: Any) -> Any:
    """`norm` has its own rule: it is run with a float32 result (AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE)."""
    return _in_float32(op, *args, **kwargs)


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
        and query.dtype in _LOW_PRECISION
        and attn_mask is None
        and value.shape[-1] == head <= FLASH_HEAD_LIMIT
        and (heads == kv_heads or enable_gqa)
    )
    if flash:
        return _flash(query, key, value, dropout_p, is_causal, scale)
    aligned = 8 if query.dtype in _LOW_PRECISION else 4
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


def _operator(name: str) -> Any:
    """Return an overload by its schema name; None in a torch that does not have it."""
    packet = getattr(aten, name.partition(".")[0], None)
    return None if packet is None else getattr(packet, name.partition(".")[2] or "default", None)


@contextmanager
def fake_cuda() -> Iterator[torch.device]:
    """Provide the stand-in's device; within, its operators follow CUDA's rules."""
    _register()
    casts = _Casts()
    library = torch.library.Library("aten", "IMPL")
    rules: list[tuple[Iterable[str], Callable[..., Any]]] = [
        (LOWER_PRECISION, lambda op, *args, **kwargs: _in_lower(op, casts, *args, **kwargs)),
        (FLOAT32, _in_float32),
        (FLOAT32_RESULT, _to_float32),
        (PROMOTE, _promoted),
        (("norm.Scalar", "norm.ScalarOpt_dim"), _norm_in_float32),
    ]
    for names, rule in rules:
        for name in names:
            operator = _operator(name)
            if operator is not None:
                library.impl(operator, partial(rule, operator), "AutocastPrivateUse1")
    library.impl("dropout", _dropout, "AutogradPrivateUse1")
    library.impl("scaled_dot_product_attention", _attention, "AutogradPrivateUse1")
    if hasattr(aten, "_fused_rms_norm"):
        library.impl("rms_norm", _rms_norm, "AutogradPrivateUse1")
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        clear()
        casts.clear()

    # autocast calls it, through this name, when its outermost region ends; its own cache is out of Python's reach.
    torch.clear_autocast_cache = clear_both
    try:
        yield torch.device(NAME, 0)
    finally:
        torch.clear_autocast_cache = clear
        library._destroy()
