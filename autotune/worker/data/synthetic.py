"""A fixed stream of training data that any model can learn within a few steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from autotune.candidate import Sequences
from autotune.errors import ModelError
from autotune.lengths import Lengths
from autotune.probe.protocol import ProbeRequest
from autotune.techniques.data import unpaddable
from autotune.worker.built_model import BuiltModel, MakeBatch, image_size
from autotune.worker.data.batch_check import check_made
from autotune.worker.data.loading import Loader
from autotune.worker.data.packing import IGNORED, rows_of
from autotune.worker.errors import CannotRun
from autotune.worker.training import Batch, Ranks

SYMBOLS = 8
"""Tokens of the vocabulary that text uses, at most: few, so that the loss falls from the first step."""
CLASSES = 2
"""Labels that images use, at most; fewer than symbols, because one image shows only one of them."""
MASK_EVERY = 7
"""One position in seven is masked, about the 15% of BERT (Devlin et al. 2019), as many in each sample."""


def stream(
    built: BuiltModel,
    seq_len: int,
    seed: int,
    sequences: Sequences = "full",
    lengths: Lengths | None = None,
) -> Callable[[int, int], Batch]:
    """Return `batch(index, micro_batch)` for the model's task, where it is made: on the host.

    Batch `index` holds the samples from `index x micro_batch` on, and sample i is the same in every batch
    that holds it, so accumulated batches and one large batch see the same data. In a text each symbol follows the one
    before in a fixed circle. With `lengths`, rows of `seq_len` are padded or packed with texts of a representative mix;
    without, one text fills each. A user's own batch maker knows no index: its batch is made once for each size, under
    the stream's seed, checked, and repeated. Raises CannotRun where the model has no use for `lengths`; a user's batch
    raises ModelError where it is not what was asked for.
    """
    if lengths is not None:
        if reason := unpaddable(built.task):
            raise CannotRun("sequences", "context", reason)
        rows = lengths.rows(sequences, seq_len, seed)
        in_one = built.attention == "flash_attention_2"
        made = rows_of(text_symbols(built, seed), rows, seq_len, sequences == "packed", in_one)

        def row_batch(index: int, micro_batch: int) -> Batch:
            numbers = range(index * micro_batch, (index + 1) * micro_batch)
            return made(numbers)

        return row_batch
    if built.make_batch is not None:
        return _repeated(built.make_batch, seq_len, seed)
    sample = _samples(built, seq_len, seed)

    def batch(index: int, micro_batch: int) -> Batch:
        numbers = torch.arange(index * micro_batch, (index + 1) * micro_batch)
        return sample(numbers)

    return batch


def feed(
    built: BuiltModel, request: ProbeRequest, ranks: Ranks, device: torch.device
) -> tuple[Callable[[int, int], Batch], Loader | None]:
    """Return this rank's batches on the host, and the loader that they come from where they are of a user's dataset.

    A trace sees the largest batch of a dataset alone.
    """
    if built.dataset is not None:
        loader = Loader(
            built.dataset, built.collate, request.candidate, device, request.seed, ranks.data_size
        )
        if is_traced(built):
            return (lambda _, micro_batch: loader.heaviest(micro_batch)), loader
        batches: Callable[[int, int], Batch] = loader.batch
    else:
        loader = None
        # A user's own batch maker repeats one batch, so each rank has to draw its own.
        own = 0 if built.make_batch is None else ranks.data_rank
        seed, sequences = request.seed + own, request.candidate.sequences
        batches = stream(built, request.seq_len, seed, sequences, request.lengths)
    return (
        lambda index, micro_batch: batches(index * ranks.data_size + ranks.data_rank, micro_batch)
    ), loader


def rows_shorter(
    built: BuiltModel, request: ProbeRequest, ranks: Ranks
) -> Callable[[int, int, int], Batch] | str | None:
    """Return `batch(index, micro_batch, tokens)`: this rank's, of rows of that length, on the host; or why none is.

    None for a dataset, whose rows are as long as they are. A user's own batch maker whose rows do not follow raises
    ModelError when it is asked.
    """
    candidate = request.candidate
    if built.task == "image-classification":
        return "images are all of one size"
    if built.dataset is not None:
        return None
    if candidate.compile != "none":
        return "compiled blocks are compiled anew for rows of another length"
    if candidate.sequences == "packed":
        return "packed rows are all as long"
    make_batch, seed = built.make_batch, request.seed
    if make_batch is None:
        width = request.seq_len

        def batch(index: int, micro_batch: int, tokens: int) -> Batch:
            number = index * ranks.data_size + ranks.data_rank
            if request.lengths is None:
                return stream(built, tokens, seed)(number, micro_batch)
            whole = stream(built, width, seed, candidate.sequences, request.lengths)(number, micro_batch)
            return {name: value[:, :tokens].contiguous() for name, value in whole.items()}

        return batch

    own = _repeated(make_batch, request.seq_len, seed + ranks.data_rank)

    def made(index: int, micro_batch: int, tokens: int) -> Batch:
        batch = _repeated(make_batch, tokens, seed + ranks.data_rank)(index, micro_batch)
        longest = own(index, micro_batch)
        if tokens < request.seq_len and _elements(batch) >= _elements(longest):
            raise ModelError(
                f"make_batch({micro_batch}, {tokens}) makes rows no shorter than those of {request.seq_len} tokens"
            )
        return batch

    return made


def is_traced(built: BuiltModel) -> bool:
    """Tell whether a model has no data, because a trace runs it."""
    return isinstance(next(built.model.parameters()), FakeTensor)


def target_counter(built: BuiltModel) -> Callable[[Batch], int] | None:
    """Return what counts the targets that a batch's loss is the mean over; None for a model of the user's own."""
    if built.task == "custom":
        return None
    first = 1 if built.task == "causal-lm" else 0  # nothing comes before the first token to tell it from

    def count(batch: Batch) -> int:
        labels = batch["labels"]
        return labels.numel() if labels.dim() == 1 else int((labels[:, first:] != IGNORED).sum())

    return count


def text_symbols(built: BuiltModel, seed: int) -> Tensor:
    """Return the token ids that texts are made of."""
    return torch.tensor(_symbols(built.config, seed)[1:])


def _samples(built: BuiltModel, seq_len: int, seed: int) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return a function from sample numbers [n] to their tensors [n, ...]."""
    if built.task == "image-classification":
        return _images(built.config, seed)
    mask, *others = _symbols(built.config, seed)
    symbols = torch.tensor(others)

    def text(numbers: Tensor) -> Tensor:
        return symbols[(numbers[:, None] + torch.arange(seq_len)) % len(symbols)]

    def masked(numbers: Tensor) -> dict[str, Tensor]:
        labels = text(numbers)
        count = max(1, seq_len // MASK_EVERY)
        positions = (numbers[:, None] + MASK_EVERY * torch.arange(count)) % seq_len
        chosen = torch.zeros_like(labels, dtype=torch.bool).scatter_(1, positions, True)
        return {
            "input_ids": labels.masked_fill(chosen, mask),
            "labels": labels.masked_fill(~chosen, IGNORED),
        }

    def plain(numbers: Tensor) -> dict[str, Tensor]:
        tokens = text(numbers)
        return {"input_ids": tokens, "labels": tokens.clone()}

    def translated(numbers: Tensor) -> dict[str, Tensor]:
        # Given outright: not every configuration names the token that a decoder starts with.
        return {**plain(numbers), "decoder_input_ids": text(numbers - 1)}

    return {"masked-lm": masked, "seq2seq-lm": translated}.get(built.task, plain)


def _symbols(config: Any, seed: int) -> list[int]:
    """Choose token ids from all over the vocabulary, none of them special; the first serves as the mask.

    Drawn without torch: a traced training has no data to draw.
    """
    vocabulary = config.get_text_config().vocab_size
    named = [value for name, value in vars(config).items() if name.endswith("_token_id")]
    # Some models have several tokens of a kind, such as the end of a text and that of a turn.
    special = {token for value in named for token in (value if isinstance(value, list) else [value])}
    wanted = min(SYMBOLS, vocabulary // 2) + 1
    drawn = random.Random(seed).sample(range(vocabulary), min(vocabulary, wanted + len(special)))
    return [token for token in drawn if token not in special][:wanted]


def _images(config: Any, seed: int) -> Callable[[Tensor], dict[str, Tensor]]:
    """Images of a few classes, each a coarse random pattern of its own."""
    height, width = image_size(config)
    classes = min(CLASSES, config.num_labels)
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(classes, getattr(config, "num_channels", 3), 8, 8, generator=generator)
    rows, columns = torch.arange(height) * 8 // height, torch.arange(width) * 8 // width

    def images(numbers: Tensor) -> dict[str, Tensor]:
        labels = numbers % classes
        return {"pixel_values": patterns[labels][:, :, rows][:, :, :, columns], "labels": labels}

    return images


def _elements(batch: Batch) -> int:
    return sum(tensor.numel() for tensor in batch.values())


def _repeated(make_batch: MakeBatch, seq_len: int, seed: int) -> Callable[[int, int], Batch]:
    made: dict[int, Batch] = {}

    def batch(index: int, micro_batch: int) -> Batch:  # noqa: ARG001 - the contract's signature
        if micro_batch not in made:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                batch = make_batch(micro_batch, seq_len)
            check_made(batch, micro_batch, seq_len)
            made[micro_batch] = batch
        return made[micro_batch]

    return batch
