"""Results that a backward pass writes into its first operand, and not when tensors are fake: these are a subclass.

With fake tensors torch makes another one, and releases the operand before anything else is allocated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._prims_common import is_non_overlapping_and_dense_or_false

aten = torch.ops.aten

_SUM = aten.add.Tensor
_ONTO_ZEROS = {
    aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.index_add.default, aten.index_put.default,
}  # fmt: skip
"""What puts gradients of chosen elements where these were: backward of `gather`, `x[rows]`, `max`, `topk`, `sort`."""
IN_PLACE = {_SUM, *_ONTO_ZEROS}
"""Operators that may write into their first operand."""


def operand(func: Any, args: tuple[Any, ...]) -> tuple[Tensor, bool] | None:
    """Return the operand that real tensors of a backward pass would be written into, if any.

    With it, whether that holds only if the operand is the newest allocation: zeros that a derivative has just made to
    write onto (`areAnyTensorSubclassLike` in torch/csrc/autograd/FunctionsManual.cpp). Gradients are summed in the one
    that the engine holds if nobody else holds it, not even as the base of a view (`can_accumulate_inplace` in
    torch/csrc/autograd/input_buffer.cpp). A user's own backward makes what it says.
    """
    if torch.is_grad_enabled() or isinstance(
        torch._C._current_autograd_node(), torch.autograd.function.BackwardCFunction
    ):
        return None
    first = args[0]
    if not isinstance(first, Tensor) or first._is_view() or not is_non_overlapping_and_dense_or_false(first):
        return None
    return first, func is not _SUM
