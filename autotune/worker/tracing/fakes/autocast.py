"""Autocast as CUDA does it, for the device that stands in: which operators run in which type, and the cache of casts.

The lists are those of `aten/src/ATen/autocast_mode.h` (AT_FORALL_LOWER_PRECISION_FP and so on).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from autotune.worker.errors import CannotRun

NAME = "gpu"
"""torch's name of the stand-in's device type."""
HALF_TYPES = (torch.bfloat16, torch.float16)

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


class Casts:
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
        """Forget all cached casts."""
        self._copies.clear()


def _eligible(tensor: Tensor) -> bool:
    return bool(tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type == NAME)


def _raised(tensor: Tensor) -> Tensor:
    return tensor.float() if _eligible(tensor) and tensor.dtype in HALF_TYPES else tensor


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _in_lower(op: Any, casts: Casts, *args: Any, **kwargs: Any) -> Any:
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


def follow_autocast(library: torch.library.Library) -> Casts:
    """Give the stand-in's operators autocast's rules, for as long as the library lives; return the cache of casts."""
    casts = Casts()
    rules: list[tuple[Iterable[str], Callable[..., Any]]] = [
        (LOWER_PRECISION, lambda op, *args, **kwargs: _in_lower(op, casts, *args, **kwargs)),
        (FLOAT32, _in_float32),
        (FLOAT32_RESULT, _to_float32),
        (PROMOTE, _promoted),
        # torch has a rule of its own for `norm`, which gives a float32 result too.
        (("norm.Scalar", "norm.ScalarOpt_dim"), _in_float32),
    ]
    for names, rule in rules:
        for name in names:
            operator = _operator(name)
            if operator is not None:
                library.impl(operator, partial(rule, operator), "AutocastPrivateUse1")
    return casts


def _operator(name: str) -> Any:
    """Return an overload by its schema name; None in a torch that does not have it."""
    packet = getattr(torch.ops.aten, name.partition(".")[0], None)
    return None if packet is None else getattr(packet, name.partition(".")[2] or "default", None)


def autocast_by_name() -> list[tuple[Any, str, Any]]:
    """Return the changes, for `replaced`, by which what torch asks or sets of CUDA's autocast is the stand-in's.

    A model's own code names the device ("cuda"), or means CUDA by naming none, as torchao's linear layers and
    liger-kernel's loss do. A region for processors is refused: on a GPU it would change nothing, so the code likely
    chose it because it saw no GPU here. Setters belong to it: torch's compiler sets what it was told before.
    """
    enter = torch.autocast.__init__

    def init(region: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        enter(region, _named(device_type), *args, **kwargs)
        if device_type == "cpu" and region._enabled:
            raise CannotRun(
                "precision",
                "context",
                "the model's code opens torch.autocast for the cpu, which does nothing on a GPU; if it chose by "
                "torch.cuda.is_available(), which is false where a GPU is only traced, let it name the device of its "
                "tensors, torch.autocast(tensor.device.type, ...), or probe it on a GPU",
            )

    asked, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    enable, set_dtype = torch.set_autocast_enabled, torch.set_autocast_dtype

    def is_enabled(device_type: str = NAME) -> bool:
        return bool(asked(_named(device_type)))

    def set_enabled(*given: Any) -> None:
        *device_type, enabled = given  # without one, it is CUDA's
        enable(_named(*device_type) if device_type else NAME, enabled)

    return [
        (torch.autocast, "__init__", init),
        (torch, "is_autocast_enabled", is_enabled),
        (torch, "get_autocast_dtype", lambda device_type: dtype(_named(device_type))),
        (torch, "get_autocast_gpu_dtype", lambda: dtype(NAME)),
        (torch, "set_autocast_enabled", set_enabled),
        (torch, "set_autocast_dtype", lambda device_type, value: set_dtype(_named(device_type), value)),
    ]


def _named(device_type: str) -> str:
    return NAME if device_type == "cuda" else device_type
