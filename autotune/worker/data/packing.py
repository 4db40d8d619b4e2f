"""Rows of a batch that hold what a dataset's length histogram says: one document and padding, or several documents."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from autotune.lengths import Row
from autotune.worker.built_model import BuiltModel
from autotune.worker.errors import CannotRun

IGNORED = -100
"""The label that transformers and torch leave out of the loss."""
LEAK = 0.01
"""Share of the effect that documents in one text have on each other, which may pass for rounding between packed ones.
Attention masked out adds nothing at all; products over routed experts round differently with what else they hold."""
TRIED = 8
"""Tokens of each of the two documents that show it."""


def rows_of(
    symbols: Tensor, rows: Sequence[Row], width: int, packed: bool, in_one: bool
) -> Callable[[Sequence[int]], dict[str, Tensor]]:
    """Return a function from row numbers to a batch of rows of `width` tokens; `rows` are repeated.

    Padded rows have an attention mask. Packed ones have positions that begin anew with each document, by which
    transformers keeps attention inside (`find_packed_sequence_indices`; what is left of a row is a document without
    targets), and with `in_one` all of them stand in a single row, as its flash attention wants packed sequences. No
    document's first token is a target.
    """

    def batch(numbers: Sequence[int]) -> dict[str, Tensor]:
        chosen = [rows[number % len(rows)] for number in numbers]
        # One tensor for all rows, from plain numbers: a trace then sees as many operators whatever they hold.
        places: list[int] = []
        for row in chosen:
            for document in (*row, width - sum(row)) if packed else (width,):
                places += range(document)
        positions = torch.tensor(places).view(len(chosen), width)
        held = torch.tensor([[sum(row)] for row in chosen])
        real = torch.arange(width) < held
        tokens = symbols[(torch.tensor([[number] for number in numbers]) + positions) % len(symbols)]
        made = {"input_ids": tokens, "labels": tokens.masked_fill(~real | (positions == 0), IGNORED)}
        if not packed:
            return {**made, "attention_mask": real.long()}
        made["position_ids"] = positions
        return {name: value.view(1, -1) for name, value in made.items()} if in_one else made

    return batch


def check_packing(
    built: BuiltModel, symbols: Tensor, precision: Callable[[], AbstractContextManager[object]]
) -> None:
    """Raise CannotRun unless what stands in one document of a packed row has no effect on the loss of another.

    Many models of transformers take positions and few say what they make of them, so it is tried: twice with another
    first document, and as much again with both in one text, for comparison.
    """
    model = built.model
    name = type(model).__name__
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise CannotRun(
            "sequences",
            "context",
            f"{name} takes no position_ids, which tell packed documents apart; use padded sequences",
        )
    device = next(model.parameters()).device
    if built.attention == "flash_attention_2" and device.type == "cpu":
        raise CannotRun(
            "sequences",
            "device",
            "packed documents are tried on the GPU under flash_attention_2, and these parameters are built off it; use "
            "sdpa or padded sequences",
        )
    second = [0, *range(1, TRIED)]

    def loss(first: list[int], positions: list[int]) -> float:
        tokens = symbols[torch.tensor([[*first, *second]]) % len(symbols)]
        labels = tokens.clone()
        labels[:, : TRIED + 1] = IGNORED
        batch = {"input_ids": tokens, "labels": labels, "position_ids": torch.tensor([positions])}
        return float(model(**{key: value.to(device) for key, value in batch.items()}).loss)

    apart, together = [*range(TRIED), *range(TRIED)], list(range(2 * TRIED))
    training = model.training
    model.eval()
    with torch.no_grad(), precision():
        between, within = (
            abs(loss([0] * TRIED, positions) - loss([1, 3] * (TRIED // 2), positions))
            for positions in (apart, together)
        )
    model.train(training)
    if between > LEAK * within:
        raise CannotRun(
            "sequences",
            "context",
            f"{name} lets packed documents attend to each other under {built.attention}: another first document "
            f"changes the second one's loss by {between:.1e}, in one text by {within:.1e}; use padded sequences",
        )
