"""Every rank keeps the whole model: DDP, and ZeRO-1, which shards the optimizer state beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from autotune.candidate import ReduceType
from autotune.worker.techniques.optimizer import MakeOptimizer, state_tensors
from autotune.worker.training import StepOptimizer


class Replica:
    """A model whose gradients DDP averages over the ranks, in buckets that are the gradients themselves.

    `gradient_as_bucket_view` saves a second copy of all gradients, if they stay views: so they are zeroed in place
    (`InPlace`), and the first micro-step of all is synchronized, which makes them views. Averaging an average again
    changes nothing, so that is right under accumulation too. `find_unused_parameters` lets models train that do not
    use all of theirs, and keeps DDP from laying its buckets out anew after the first step, while gradients are views
    of the old ones.
    """

    def __init__(self, model: nn.Module, reduce_dtype: ReduceType = "fp32") -> None:
        """Wrap a model; with bf16 buckets are averaged as a copy in it, and what micro-steps add up stays in fp32."""
        self.model = DistributedDataParallel(model, gradient_as_bucket_view=True, find_unused_parameters=True)
        if reduce_dtype == "bf16":
            # By another name: DDP wants NCCL for the hook of this one, which gloo runs as well.
            self.model.register_comm_hook(None, lambda group, bucket: bf16_compress_hook(group, bucket))
        self._views = False

    def reduction(self, last: bool) -> AbstractContextManager[object]:
        """Return the context of one micro-step: gradients are averaged in the last of a global step."""
        if last or not self._views:
            self._views = True
            return nullcontext()
        context: AbstractContextManager[object] = self.model.no_sync()
        return context


class InPlace:
    """An optimizer that zeroes gradients where they are, instead of dropping them."""

    def __init__(self, optimizer: StepOptimizer, model: nn.Module) -> None:
        self._optimizer = optimizer
        self._model = model

    def step(self) -> None:
        """Update every parameter from its gradient."""
        self._optimizer.step()

    def zero_grad(self) -> None:
        """Set the gradients to zero where they are."""
        gradients = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        if gradients:
            torch._foreach_zero_(gradients)

    def state_tensors(self) -> Iterator[Tensor]:
        """Return every tensor of the optimizer's state."""
        return self._optimizer.state_tensors()


class Zero1Optimizer:
    """torch's ZeroRedundancyOptimizer: each rank updates some of the parameters and sends them to the others.

    Whole parameters are given to ranks, the largest first, so shares differ: the rank with the largest parameter
    may hold more than its part of the state. Parameters become views of one flat tensor a rank, so that they are
    sent in as many messages as there are ranks.
    """

    def __init__(self, model: nn.Module, make: MakeOptimizer) -> None:
        trained: list[Any] = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._optimizer = ZeroRedundancyOptimizer(
            trained, optimizer_class=lambda group: make(group), parameters_as_bucket_view=True
        )

    def step(self) -> None:
        """Update this rank's parameters, and exchange the updated ones with the other ranks."""
        self._optimizer.step()

    def zero_grad(self) -> None:
        """Drop the gradients, or zero them where they are views."""
        self._optimizer.zero_grad(set_to_none=True)

    def state_tensors(self) -> Iterator[Tensor]:
        """Return every tensor of this rank's part of the optimizer's state."""
        return state_tensors([self._optimizer.optim])
