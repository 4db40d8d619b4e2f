"""Results that a backward pass writes into its first operand, and not when tensors are fake: these are a subclass.

With fake tensors torch makes another one, and releases the operand before anything else is allocated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._prims_common import is_non_overlapping_and_dense_or_false

aten = torch.ops.aten

ONTO_ZEROS = {
    aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.index_add.default, aten.index_put.default,
}  # fmt: skip
"""What puts gradients of chosen elements where these were: backward of `gather`, `x[rows]`, `max`, `topk`, `sort`.

They write onto zeros that the same derivative has just made. That of `scatter` copies the gradient that it is given.
"""
IN_PLACE = {aten.add.Tensor, *ONTO_ZEROS}
"""Operators that may write into their first operand. `add` sums the gradients of what is used twice."""


def overwritten(args: tuple[Any, ...]) -> Tensor | None:
    """Return the operand that an operator of `IN_PLACE`, in a backward pass of real tensors, would write into, if any.

    Derivatives spare subclasses of tensors (`areAnyTensorSubclassLike` in torch/csrc/autograd/FunctionsManual.cpp), and
    the engine sums in the gradient that it holds if nobody else holds it, not even as the base of a view
    (`can_accumulate_inplace` in torch/csrc/autograd/input_buffer.cpp). A user's own backward makes what it says.
    """
    node = torch._C._current_autograd_node()
    if torch.is_grad_enabled() or isinstance(node, torch.autograd.function.BackwardCFunction):
        return None
    first = args[0]
    if not isinstance(first, Tensor) or first._is_view() or not is_non_overlapping_and_dense_or_false(first):
        return None
    return first
