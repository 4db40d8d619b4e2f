"""One assembled training: what `build` composes and `steps` drives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from autotune.worker.data.loading import Loader

Batch = Mapping[str, Tensor]
"""Keyword arguments of the model's forward; always holds what the loss needs."""


class StepOptimizer(Protocol):
    """What a step needs of an optimizer; torch's own have it, and so have the offloaded ones."""

    def step(self) -> None:
        """Update every parameter from its gradient."""
        ...

    def zero_grad(self) -> None:
        """Drop the gradients, or set them to zero."""
        ...

    def state_tensors(self) -> Iterator[Tensor]:
        """Every tensor of optimizer state, wherever it lives."""
        ...


class Scaling(Protocol):
    """Gradients that are made of a scaled loss, as fp16 needs them."""

    skipped: int
    """Optimizer steps that were left out so far, because a gradient was infinite or NaN."""
    collapsed: bool
    """Whether the scale has fallen so far that none helps."""

    def unscale(self) -> None:
        """Divide the gradients by the scale, in place; to be called once before a step, by whoever looks at them."""
        ...


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that train together."""

    rank: int = 0
    size: int = 1
    tensor_parallel: int = 1
    """Ranks in a row that share one model and take the same samples (tensor parallelism)."""

    @property
    def data_rank(self) -> int:
        """This process's place among those that take samples of their own."""
        return self.rank // self.tensor_parallel

    @property
    def data_size(self) -> int:
        """How many take samples of their own."""
        return self.size // self.tensor_parallel

    def largest(self, value: float) -> float:
        """Return the largest of the ranks' values, the same on each: what all must agree on goes through it."""
        return value

    def mean(self, value: float) -> float:
        """Return the mean of the ranks' values."""
        return value


class TakenGradients(Protocol):
    """What takes each gradient off the device as soon as it is there."""

    def stand_in(self, parameter: Tensor, other: Tensor, room_like: Callable[[Tensor], Tensor]) -> None:
        """Hold for a parameter what is held for another one like it, in room that `room_like` makes of that one's."""
        ...


def no_reduction(last: bool) -> AbstractContextManager[object]:  # noqa: ARG001 - the field's signature
    """Return a micro-step's context where there is nothing to choose: one rank, or gradients reduced every time."""
    return nullcontext()


def placed_already(batch: Batch) -> Batch:
    """Return a batch as it is: the host is the device."""
    return batch


@dataclass(frozen=True)
class Training:
    """A model ready to train on one device, one rank of those that train together, under one candidate."""

    model: nn.Module
    optimizer: StepOptimizer
    device: torch.device
    loss: Callable[[Batch], Tensor]
    """Forward pass in the candidate's precision; a scalar fp32 loss, the mean over the batch's targets."""
    batch: Callable[[int, int], Batch]
    """`batch(index, micro_batch)`: this rank's index-th batch of the fixed stream, on the host; equal arguments, equal
    batch. `place` brings it to the device."""
    tokens_per_sample: int
    attention: str | None
    """The attention implementation that runs, as the model reports it; None where it reports none."""
    close: Callable[[], None]
    """Release what outlives the tensors: mapped files, process groups."""
    place: Callable[[Batch], Batch] = placed_already
    """Bring a batch to the training device, whose queue that does not wait for."""
    ranks: Ranks = Ranks()
    reduction: Callable[[bool], AbstractContextManager[object]] = no_reduction
    """`reduction(last)`: the context of one micro-step's forward and backward; gradients must have been reduced over
    the ranks by the end of the last one of a global step."""
    gradients: Callable[[], Iterable[Tensor]] | None = None
    """All gradients between backward and the optimizer step, where they are not the parameters' own."""
    host_gradients: TakenGradients | None = None
    """What takes each gradient off the device as soon as it is there; None where none is taken."""
    shards: Callable[[], Iterable[Tensor]] | None = None
    """What this rank keeps of the parameters, where that is not the parameters' own memory."""
    scaling: Scaling | None = None
    """How gradients are scaled between backward and the optimizer step; None where they are what they are."""
    loader: Loader | None = None
    """Where batches come from when they are of a dataset of the user's own."""
    shorter: Callable[[int, int, int], Batch] | None = None
    """`shorter(index, micro_batch, tokens)`: this rank's batch of rows of that length, on the host. None with a loader,
    whose are as long as they are; and where `of_one_length` says why there are none."""
    of_one_length: str = ""
    """Why rows cannot differ in length; empty where they can."""
    targets: Callable[[Batch], int] | None = None
    """How many targets the loss of a batch is the mean over; None where only a user's own model knows."""

    def shares(self, batches: Sequence[Batch]) -> list[float]:
        """Return the weights of the losses of one global step's batches, under which all its targets count alike.

        Batches of unequal numbers of targets (padding, masks) have means that count for more or less; ranks average
        their gradients whatever they took. Each loss times its weight, summed over the micro-steps and averaged over
        the ranks, is the mean over all targets of all ranks. All ranks call it together, once a global step.
        """
        counts = [1 if self.targets is None else self.targets(batch) for batch in batches]
        mean = self.ranks.mean(sum(counts))
        return [count / mean if mean else 0.0 for count in counts]
