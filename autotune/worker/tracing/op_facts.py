"""What one call of an operator does: FLOPs, bytes moved, a copy to the host or back, a collective.

FLOPs of matrix products are those of `torch.utils.flop_counter`; attention that is masked causally does half of them,
because its kernels skip the tiles above the diagonal. Every other operator counts one FLOP for each element it
writes, one that draws random numbers each of these. Not covered: what a kernel reads twice, and which of its reads are
served by a cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from autotune.timeline.op_counts import MathType, Operator, OpKind

_NO_WORK = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "set_",
    "lift_fresh",
}
_OVERWRITE = {"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"}
"""These write their first argument without reading it."""
_LIKE = {
    "zeros_like",
    "ones_like",
    "full_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "rand_like",
    "randn_like",
}
"""These look at the shape of their argument alone."""
_GATHER = {
    "embedding",
    "index",
    "index_select",
    "gather",
    "nll_loss_forward",
    "nll_loss2d_forward",
    "_unsafe_index",
}
"""These read of their first argument (for nll_loss: of both) as much as they write, and the rest whole."""
_SCATTER = {"index_put_", "_index_put_impl_", "index_add_", "scatter_", "scatter_add_", "index_copy_"}
"""These write as much as the values they are given."""
_UNREAD = {"nll_loss_backward": (1,), "nll_loss2d_backward": (1,)}
"""Positions of arguments that are only looked at for their shape."""
_GRADIENTS_KEPT = ("_fused_adam", "_fused_sgd", "_fused_adagrad")
"""Schemas call the gradients written, which they are only where a loss scale is taken out of them."""
_COLLECTIVES: tuple[tuple[str, OpKind], ...] = (
    ("reduce_scatter", "reduce_scatter"), ("all_to_all", "all_to_all"), ("alltoall", "all_to_all"),
    ("allgather", "all_gather"), ("all_gather", "all_gather"), ("allreduce", "all_reduce"),
    ("all_reduce", "all_reduce"), ("broadcast", "broadcast"),
)  # fmt: skip
_MATH: dict[torch.dtype, MathType] = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8",
}  # fmt: skip


class OpFacts:
    """What is known of an operator whatever its arguments."""

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.name = schema.name.partition("::")[2]
        self.namespace = schema.name.partition("::")[0]
        self.mutable = schema.is_mutable
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        written = [
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
            and not (argument.name == "grads" and self.name.startswith(_GRADIENTS_KEPT))
        ]  # fmt: skip
        self.written_positions = {position for position, _ in written}
        self.written_names = {name for _, name in written}
        self.formula = flop_registry.get(func._overloadpacket)
        if "_for_cpu" in self.name:  # attention has operators of its own there, with the same arguments first
            self.formula = flop_registry.get(getattr(torch.ops.aten, self.name.replace("_for_cpu", ""), None))
        names = [argument.name for argument in schema.arguments]
        self.causal = names.index("is_causal") if "is_causal" in names else None
        self.attention = "_attention" in self.name and self.formula is not None
        self.collective: OpKind | None = None
        if self.namespace in {"c10d", "_c10d_functional", "_c10d_functional_autograd"}:
            self.collective = next((kind for part, kind in _COLLECTIVES if part in self.name), None)

    def describe(
        self, device: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> Operator | None:
        """Return what a call does; None for nothing."""
        if self.name in _NO_WORK:
            return None
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        if self.collective is not None:
            sizes = [tensor_bytes(value) for value in given]
            size = sum(sizes) if self.collective == "all_reduce" else max(sizes, default=0)
            size = max([size, *map(tensor_bytes, _tensors(result))])
            ranks, stride = _group(args, kwargs)
            return Operator(self.name, self.collective, "none", ranks, 0, size, stride)
        if self.namespace == "_c10d_functional":  # waiting
            return None
        storages = {value.untyped_storage()._cdata for value in given}
        made = [value for value in _tensors(result) if value.untyped_storage()._cdata not in storages]
        if not made and not self.mutable:
            return None
        written = [*made, *self._written(args, kwargs)]
        out = sum(map(tensor_bytes, written))
        if "out" in kwargs:  # written, and not read
            kwargs = {name: value for name, value in kwargs.items() if name != "out"}
            given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        moved = out + self._read(args, kwargs, given, out)
        places = {_place(value, device) for value in [*given, *written] if value.dim() or len(given) == 1}
        if places == {"host", "device"} and self.name in {"_to_copy", "copy_"}:
            kind: OpKind = "upload" if _place(written[0], device) == "device" else "download"
            return Operator(self.name, kind, "none", 1, 0, out)
        if places == {"host"}:
            return Operator(self.name, "host", "none", 1, _elements(written), moved)
        flops = self._flops(args, kwargs, result)
        if flops is None:
            kind = "random" if self.random else "memory"
            return Operator(self.name, kind, "none", 1, _elements(written), moved)
        kind = "attention" if self.attention else "matmul"
        return Operator(self.name, kind, _math(given), 1, flops, moved)

    def _written(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        found = [args[position] for position in self.written_positions if position < len(args)]
        found += [value for name, value in kwargs.items() if name in self.written_names]
        written = [value for value in tree_leaves(found) if isinstance(value, Tensor)]
        if self.name in _SCATTER:
            values = [value for value in tree_leaves(args[1:]) if isinstance(value, Tensor)]
            return [max(values, key=tensor_bytes)] if values else written
        return written

    def _read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: list[Tensor], out: int) -> int:
        if self.name in _LIKE:
            return 0
        if self.name in _GATHER:
            return out + sum(tensor_bytes(value) for value in given[1:])
        unread: tuple[int, ...] = _UNREAD.get(self.name, ())
        if self.name in _OVERWRITE or self.name in _SCATTER:
            unread = (0,)
        if not unread:
            return sum(map(tensor_bytes, given))
        kept = [value for position, value in enumerate(args) if position not in unread]
        return sum(tensor_bytes(v) for v in tree_leaves((kept, kwargs)) if isinstance(v, Tensor))

    def _flops(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int | None:
        if self.name == "_grouped_mm":
            return _grouped(args, result)
        if self.formula is None:
            return None
        counted = _with_all_heads(self.name, args) if self.attention else args
        counted = tuple(value for value in counted if not isinstance(value, torch.dtype))  # of the result
        flops = int(self.formula(*counted, **kwargs, out_val=result))
        causal = kwargs.get("is_causal", False)
        if self.causal is not None and self.causal < len(args):
            causal = args[self.causal]
        return flops // 2 if causal is True else flops


def _with_all_heads(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of an attention with keys and values as shapes that have the queries' heads.

    Every query head computes, however few heads its keys have; the formulas of torch 2.11 refuse to count that.
    """
    if not name.startswith("_scaled_dot_product"):
        return args
    at = 1 if "backward" in name else 0
    query, *shared = (value.shape for value in args[at : at + 3])
    return (*args[: at + 1], *((s[0], query[1], *s[2:]) for s in shared), *args[at + 3 :])


def _grouped(args: tuple[Any, ...], result: Tensor) -> int:
    """Two FLOPs for each element of the result and of the summed dimension; both operands 2-d sum over the groups."""
    left, right = args[:2]
    if left.dim() == 2 and right.dim() == 2:
        return int(2 * left.shape[0] * left.shape[1] * right.shape[1])
    return int(2 * result.numel() * left.shape[-1])


def _math(given: list[Tensor]) -> MathType:
    types = [value.dtype for value in given if value.is_floating_point() and value.dim() > 1]
    for dtype in types:
        if dtype in _MATH:
            return _MATH[dtype]
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [value for value in tree_leaves(result) if isinstance(value, Tensor)]


def tensor_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's distinct elements: an expanded dimension is there once."""
    count: int = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or size == 0:
            count *= size
    return count


def _elements(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _place(tensor: Tensor, device: str) -> str:
    own = getattr(tensor, "fake_device", None) or tensor.device
    return "device" if own.type == device else "host"


def _group(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many processes a collective spans and how far apart in rank, from its group's name or its group."""
    from torch.distributed import ProcessGroup, get_process_group_ranks
    from torch.distributed.distributed_c10d import _resolve_process_group

    def described(group: ProcessGroup) -> tuple[int, int]:
        ranks = get_process_group_ranks(group)
        return len(ranks), ranks[1] - ranks[0] if len(ranks) > 1 else 1

    for value in tree_leaves((args, dict(kwargs))):
        if isinstance(value, ProcessGroup):
            return described(value)
        if isinstance(value, torch.ScriptObject):
            try:
                return described(ProcessGroup.unbox(value))
            except (RuntimeError, TypeError, KeyError):
                continue
    for value in reversed([v for v in (*args, *kwargs.values()) if isinstance(v, str)]):
        try:
            return described(_resolve_process_group(value))
        except (RuntimeError, ValueError, KeyError):
            continue
    return 1, 1
