"""Linear cross-entropy in chunks of positions: the logits of the whole batch never exist at once.

The last layer of a language model turns each hidden state into as many logits as the vocabulary has tokens, and the
loss wants them in float32: with 50k to 150k tokens that is often the peak of the step. Here each chunk's logits are
made, turned into their part of the loss and of the gradients, and dropped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autotune.techniques.loss import unchunked
from autotune.worker.built_model import BuiltModel
from autotune.worker.data.packing import IGNORED
from autotune.worker.errors import CannotRun

CHUNKS = 16
"""Chunks that a sequence is cut into: logits shrink to a sixteenth, while 1024 positions still give matrices of 64 rows
for each sample. The number does not depend on the micro-batch, so sizes stay proportional to it."""
SLICES = 8
"""Parts of the vocabulary for which the weight's gradient is made in turn, where it has to be cast to be added."""


def chunk_loss(built: BuiltModel) -> None:
    """Let a causal language model of transformers compute its loss in chunks, in place; its forward gives no logits.

    The head hands its input on to the loss. Raises CannotRun where the model has no such head and loss, and, at the
    first forward pass, where it does anything to the logits in between (a soft cap, a scale).
    """
    from transformers.loss.loss_utils import ForCausalLMLoss

    model: Any = built.model
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    name = type(model).__name__
    if (reason := unchunked(built.task, name)) is not None:
        raise CannotRun("loss", "context", reason)
    if getattr(model, "loss_function", None) is not ForCausalLMLoss:
        raise CannotRun(
            "loss", "context", f"chunked loss is for the usual loss, and {name} has one of its own"
        )
    if type(head) is not nn.Linear:
        raise CannotRun("loss", "context", f"chunked loss needs a linear head, and {name} has none")
    handed: list[Tensor] = []

    def hand_on(hidden: Tensor) -> Tensor:
        handed[:] = [hidden]
        return hidden

    def loss(logits: Tensor, labels: Tensor, *_: Any, **options: Any) -> Tensor:
        expected = handed.pop() if handed else None
        if logits is not expected:
            raise CannotRun(
                "loss",
                "context",
                f"{name} changes its logits between head and loss, which chunked loss leaves out",
            )
        if options.get("num_items_in_batch") is not None or options.get("shift_labels") is not None:
            raise CannotRun("loss", "context", "chunked loss takes plain labels and their mean")
        targets = nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:]
        return linear_cross_entropy(logits, head.weight, head.bias, targets)

    head.forward = hand_on
    model.loss_function = loss


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunks: int = CHUNKS
) -> Tensor:
    """Return the mean cross-entropy of `hidden @ weight.T + bias` over the targets that are not IGNORED.

    `hidden` [batch, positions, width], `weight` [vocabulary, width], `targets` [batch, positions]. Products are made in
    autocast's type where it is on, as a linear layer's would be, and loss and gradients of logits in float32. Without
    any target the loss is NaN, as torch's is.
    """
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    result: Tensor = _LinearCrossEntropy.apply(hidden, weight, bias, targets, dtype, chunks)
    return result


class _LinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc]  # mypy does not follow torch
    """Makes the gradients during forward, where the logits are at hand, and scales them in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        dtype: torch.dtype,
        chunks: int,
    ) -> Tensor:
        wanted = [tensor is not None and tensor.requires_grad for tensor in (hidden, weight, bias)]
        with torch.autocast(hidden.device.type, enabled=False):
            total, gradients = _sum_over_chunks(hidden, weight, bias, targets, dtype, chunks, wanted)
        # Not save_for_backward: these are made for backward alone, and nothing may move or keep them.
        ctx.gradients = gradients
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        assert gradients is not None, "the gradients were given away by an earlier backward pass"
        scaled = (None if gradient is None else gradient.mul_(upstream[0]) for gradient in gradients)
        return (*scaled, None, None, None)


def _sum_over_chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    dtype: torch.dtype,
    chunks: int,
    wanted: list[bool],
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the mean loss, and its gradients by hidden states, weight and bias as far as they are wanted."""
    grad_hidden = torch.empty_like(hidden) if wanted[0] else None
    grad_weight = torch.zeros_like(weight) if wanted[1] else None
    grad_bias = torch.zeros_like(bias) if bias is not None and wanted[2] else None
    cast = weight.to(dtype)
    count = (targets != IGNORED).sum()
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    length = -(-hidden.shape[1] // chunks)
    for start in range(0, hidden.shape[1], length):
        part = hidden[:, start : start + length]
        rows = part.reshape(-1, hidden.shape[2]).to(dtype)
        loss, grad = _loss_and_gradient(
            rows, cast, bias, targets[:, start : start + length].reshape(-1), count
        )
        total += loss
        if grad_hidden is not None:
            grad_hidden[:, start : start + length] = (grad @ cast).view_as(part)
        if grad_weight is not None:
            _add_product(grad_weight, grad, rows)
        if grad_bias is not None:
            grad_bias += grad.sum(0)
        del grad
    return total, [grad_hidden, grad_weight, grad_bias]


def _loss_and_gradient(
    rows: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, count: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a chunk's share of the mean loss (float32), and its gradient by the logits in the rows' type."""
    logits = (rows @ weight.t()).float()
    if bias is not None:
        logits += bias
    counted = targets != IGNORED
    places = targets.masked_fill(~counted, 0).unsqueeze(1)
    share = (counted / count).unsqueeze(1)
    # In place throughout: torch's logsumexp would make another copy of the logits, which is where a step's peak is.
    largest = logits.amax(1, keepdim=True)
    chosen = logits.gather(1, places) - largest
    total = logits.sub_(largest).exp_().sum(1, keepdim=True)
    loss = ((total.log() - chosen) * share).sum()
    logits.mul_(share / total).scatter_add_(1, places, -share)  # the softmax, minus one at the target
    return loss, logits.to(rows.dtype)


def _add_product(total: Tensor, grad: Tensor, rows: Tensor) -> None:
    """Add a chunk's gradient of the weight, in the total's type: sixteen sums in bf16 would lose small parts."""
    if grad.dtype == total.dtype:
        total.addmm_(grad.t(), rows)
        return
    size = -(-total.shape[0] // SLICES)
    for start in range(0, total.shape[0], size):
        total[start : start + size] += grad[:, start : start + size].t() @ rows
