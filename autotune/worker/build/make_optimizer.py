"""The optimizer of a candidate: torch's or a library's, inside what its offload and its sharding put around it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from autotune.candidate import Candidate
from autotune.techniques.sharding import IN_SHARDS, REPLICATED
from autotune.worker.techniques.gradient_offload import HostGradients
from autotune.worker.techniques.mapped_files import MappedFiles, MappedOptimizer
from autotune.worker.techniques.offload_store import OffloadStore
from autotune.worker.techniques.optimizer import MakeOptimizer, PlainOptimizer, optimizer_maker
from autotune.worker.techniques.optimizer_in_backward import BackwardOptimizer
from autotune.worker.techniques.optimizer_offload import StreamedOptimizer
from autotune.worker.training import StepOptimizer


def maker_of(candidate: Candidate, parameters: Iterable[nn.Parameter]) -> MakeOptimizer:
    """Return what makes the candidate's optimizer for some of a model's `parameters`."""
    count = sum(parameter.numel() for parameter in parameters)
    return optimizer_maker(candidate.optimizer, count, candidate.optimizer_kernel)


def optimizer_of(
    candidate: Candidate,
    model: nn.Module,
    device: torch.device,
    place: MappedFiles | OffloadStore,
    gradients: HostGradients | None = None,
) -> StepOptimizer:
    """Return the candidate's optimizer for a model; `place` is where offload keeps tensors, in place or by copies."""
    parameters = list(model.parameters())
    make = maker_of(candidate, parameters)

    def over(those: list[nn.Parameter]) -> StepOptimizer:
        if candidate.offload == "none":
            return PlainOptimizer(those, make)
        if isinstance(place, MappedFiles):
            return MappedOptimizer(those, make, place)
        if candidate.offload != "full":
            return StreamedOptimizer(those, make, device, place, gradients)
        # What left the device with its parameters is updated where it is.
        return MappedOptimizer(those, make, place.files) if place.files else PlainOptimizer(those, make)

    if candidate.sharding in REPLICATED:
        from autotune.worker.techniques.sharding.replicated import InPlace, Zero1Optimizer

        whole = Zero1Optimizer(model, make) if candidate.sharding == "zero1" else over(parameters)
        return InPlace(whole, model)
    in_slices = candidate.tensor_parallel > 1 or candidate.sharding in IN_SHARDS
    if in_slices or (candidate.offload == "full" and not isinstance(place, MappedFiles)):
        from autotune.worker.techniques.sharding.fully_sharded import ShardOptimizer

        return ShardOptimizer(parameters, over)
    if candidate.optimizer_in_backward:
        return BackwardOptimizer(parameters, make)
    return over(parameters)
