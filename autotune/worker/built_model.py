"""A model that was built, and what is needed to feed it; where its forward's loss and its images' size are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils.data import default_collate

from autotune.errors import InputError
from autotune.specs import Task
from autotune.worker.dataset import Collate, Samples

MakeBatch = Callable[[int, int], Mapping[str, Tensor]]
"""`make_batch(micro_batch, seq_len)` of the user's own model: the forward's arguments, on the CPU."""


@dataclass(frozen=True)
class BuiltModel:
    """A model with fresh weights, and what is needed to feed it."""

    model: nn.Module
    task: Task
    tokens_per_sample: int
    """`seq_len` for text, the number of patches (and class token) for images."""
    make_batch: MakeBatch | None = None
    """Only for the task `custom`, and only where it has no dataset."""
    dataset: Samples | None = None
    """The user's own, of which batches are made."""
    collate: Collate = default_collate
    """Makes a batch of its samples."""

    def example(self) -> Mapping[str, Tensor]:
        """Return a batch of one sample of the user's own."""
        if self.dataset is not None:
            with unset_fake_temporarily():  # a trace takes the dataset as it is
                return self.collate([self.dataset[0]])
        assert self.make_batch is not None
        return self.make_batch(1, self.tokens_per_sample)

    @property
    def config(self) -> Any:
        """The transformers configuration; None for a module that has none."""
        return getattr(self.model, "config", None)

    @property
    def attention(self) -> str | None:
        """The attention implementation that the model reports; None where it reports none."""
        return getattr(self.config, "_attn_implementation", None)


def loss_of(output: object) -> Tensor:
    """Return the loss in a forward's output: the tensor itself, `.loss`, `["loss"]` or the first of a tuple.

    Raises InputError where there is none, or where it is not one number.
    """
    loss: object = output
    if isinstance(output, Mapping):
        loss = output.get("loss")
    elif isinstance(output, tuple):
        loss = output[0] if output else None
    elif not isinstance(output, Tensor):
        loss = getattr(output, "loss", None)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = (
            f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(output).__name__
        )
        raise InputError(
            "the model's forward(**batch) must return the loss as one number: a scalar tensor, an object or "
            f"dict with `loss`, or a tuple that starts with it; it returned {found}"
        )
    return loss.reshape(())


def image_size(config: Any) -> tuple[int, int]:
    """Return height and width (pixels) of a configuration's images; 224 where it says nothing."""
    size = getattr(config, "image_size", 224)
    return (size, size) if isinstance(size, int) else (size[0], size[1])
