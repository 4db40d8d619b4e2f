"""Whether batches of a user's own hold what they were asked for: speeds and peaks are told of the rows asked for.

Names and layouts are the user's, so shapes decide. A batch has the rows asked for if one of its tensors has that many
along its first dimension; where it has integer tensors of two dimensions and more, one of those. It may be packed
instead: a single row, or none, that holds the tokens of all. Of a batch maker's rows the tokens are compared too, where
integer tensors of (rows, tokens) say what they are; one more or less is allowed, for targets that are shifted by one.
Float tensors of other lengths may be what a row really consists of (sound, images), and then nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from autotune.errors import ModelError

Shapes = Mapping[str, Tensor]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


class WrongBatch(ModelError):
    """A batch is not what was asked for: `what` of it is another."""

    def __init__(self, message: str, what: Literal["rows", "tokens", "type"]) -> None:
        self.what = what
        super().__init__(message)


def check_made(batch: Shapes, micro_batch: int, seq_len: int) -> None:
    """Raise WrongBatch unless `make_batch(micro_batch, seq_len)` made that many rows of so many tokens."""
    asked = f"make_batch({micro_batch}, {seq_len})"
    if reason := no_tensors(batch):
        raise WrongBatch(f"{asked} {reason}", "type")
    whole = micro_batch * seq_len
    if any(flat in {whole, whole + micro_batch, whole - 1, whole + 1} for flat in _packed(batch)):
        return
    if micro_batch not in _rows(batch):
        raise WrongBatch(
            f"{asked} made {_shown(batch)}: {_seen_rows(batch)} where {micro_batch} were asked for, so no peak and no "
            "tokens per second would be of what they are said to be; make as many rows as asked for",
            "rows",
        )
    found = _lengths(batch, micro_batch)
    sizes = [
        size for t in batch.values() if t.dim() > 1 and t.shape[0] == micro_batch for size in t.shape[1:]
    ]
    if found and not any(abs(size - seq_len) <= 1 for size in sizes):
        longest = max(found)
        raise WrongBatch(
            f"{asked} made {_shown(batch)}: rows of {longest} tokens where {seq_len} were asked for, so tokens per "
            f"second would be of tokens that are not there; make rows of {seq_len}, or ask for what it makes with "
            f"--seq-len {longest}",
            "tokens",
        )


def check_collated(batch: Shapes, samples: int, one: Shapes, copies: bool = False) -> None:
    """Raise WrongBatch unless a batch of a dataset holds so many samples, which may be padded or packed.

    `one` is the batch of one sample alone, which may be several rows. Where `batch` is of `copies` of that sample,
    packed ones must hold as many times its tokens; other samples have lengths of their own.
    """
    asked = f"the batch of {samples} samples"
    if reason := no_tensors(batch):
        raise WrongBatch(f"{asked} {reason}", "type")
    if any(samples * rows in _rows(batch) for rows in _rows(one)):
        return
    packed = _packed(batch)
    if any(not copies or flat == samples * single for flat in packed for single in _packed(one)):
        return
    raise WrongBatch(
        f"{asked} holds {_shown(batch)}: {_seen_rows(batch)}, where the batch of one sample holds {_shown(one)}, so no "
        "peak and no tokens per second would be of what they are said to be; let the collate function make rows of "
        "each sample, or pack all into one row",
        "rows",
    )


def no_tensors(batch: object) -> str | None:
    """Return what is wrong with what was made as a batch, where it is no dict of tensors."""
    if isinstance(batch, Mapping) and batch and all(isinstance(value, Tensor) for value in batch.values()):
        return None
    return f"must be a dict of tensors, it is {type(batch).__name__}"


def _rows(batch: Shapes) -> set[int]:
    """Return what the rows of a batch may number: the first dimensions of the tensors that can stand for them."""
    tensors = [tensor for tensor in batch.values() if tensor.dim()]
    telling = [tensor for tensor in tensors if tensor.dtype in _INTEGERS and tensor.dim() > 1] or tensors
    return {tensor.shape[0] for tensor in telling}


def _packed(batch: Shapes) -> list[int]:
    """Return how many tokens its tensors have that hold all in one row, or in none (the first dimension of floats)."""
    integers = [tensor for tensor in batch.values() if tensor.dtype in _INTEGERS]
    floats = [t.shape[0] for t in batch.values() if t.is_floating_point() and t.dim() == 2]
    return [t.numel() for t in integers if t.dim() == 1 or (t.dim() == 2 and t.shape[0] == 1)] + floats


def _lengths(batch: Shapes, rows: int) -> list[int]:
    """Return the tokens in each of its integer tensors of (rows, tokens); nothing where floats may be the content."""
    whole = [t for t in batch.values() if t.dim() > 1 and t.shape[0] == rows]
    lengths = [t.shape[1] for t in whole if t.dtype in _INTEGERS and t.dim() == 2]
    contents = (t for t in whole if t.is_floating_point())
    return [] if any(not set(lengths) & set(content.shape[1:]) for content in contents) else lengths


def _seen_rows(batch: Shapes) -> str:
    sizes = sorted({tensor.shape[0] for tensor in batch.values() if tensor.dim()})
    return f"{_listed(sizes)} {'row' if sizes == [1] else 'rows'}"


def _shown(batch: Shapes) -> str:
    return ", ".join(f"{name} [{' x '.join(map(str, tensor.shape))}]" for name, tensor in batch.items())


def _listed(numbers: Iterable[int]) -> str:
    return " or ".join(map(str, numbers)) or "no"
