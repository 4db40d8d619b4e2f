"""A training in the making: what the techniques pass on to each other while `build` composes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from autotune.probe.protocol import ProbeRequest
from autotune.worker.blocks import Blocks
from autotune.worker.built_model import BuiltModel
from autotune.worker.techniques.gradient_offload import HostGradients
from autotune.worker.techniques.loss_scaling import ScaledOptimizer
from autotune.worker.techniques.mapped_files import MappedFiles
from autotune.worker.techniques.offload_store import OffloadStore
from autotune.worker.training import Batch, Ranks, StepOptimizer, no_reduction

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from autotune.worker.techniques.sharding.deepspeed import DeepSpeedEngine
    from autotune.worker.techniques.sharding.rank0_init import Rank0Weights


def _as_it_is(batch: Batch) -> Batch:
    return batch


@dataclass
class BuildContext:
    """A training in the making; each technique reads what those before it left."""

    request: ProbeRequest
    device: torch.device
    place: MappedFiles | OffloadStore
    """Where offload keeps its tensors: files to use in place, or where to copy to and from."""
    closing: ExitStack = field(default_factory=ExitStack)
    precision: Callable[[], AbstractContextManager[object]] = nullcontext
    ranks: Ranks = field(default_factory=Ranks)
    mesh: DeviceMesh | None = None
    """The ranks as data x tensor, where some share a model."""
    rank0_weights: Rank0Weights | None = None
    """Where rank 0 builds for all: how a module's tensors come from it."""
    prepare: Callable[[Iterable[nn.Module]], None] | None = None
    """What has to be done with modules before they are sharded."""
    saving: Callable[[Batch], AbstractContextManager[object]] = nullcontext
    """Opened around every forward pass: decides how activations are kept."""
    casting: Callable[[Batch], Batch] = _as_it_is
    """Turns a batch into what the model takes."""
    built: BuiltModel = field(init=False)
    forward: Callable[..., object] = field(init=False)
    """What a step calls: the model, or its wrapper."""
    reduction: Callable[[bool], AbstractContextManager[object]] = no_reduction
    blocks: Blocks | None = None
    optimizer: StepOptimizer = field(init=False)
    engine: DeepSpeedEngine | None = None
    gradients: HostGradients | None = None
    """Where gradients are kept that leave the device by copies."""
    scaling: ScaledOptimizer | None = None

    @property
    def files(self) -> MappedFiles | None:
        """Files to use in place; None where offload copies."""
        return self.place if isinstance(self.place, MappedFiles) else None

    @property
    def disk(self) -> MappedFiles | None:
        """Files, in place or behind copies; None where tensors are kept in host memory."""
        return self.place if isinstance(self.place, MappedFiles) else self.place.files
