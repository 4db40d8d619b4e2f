"""DeepSpeed's real engine on fake tensors, for a trace: its flat buffers, hooks, fetches and buckets, as they come.

DeepSpeed gives parameters other memory by assigning their data, which the storages behind fake tensors follow like any
other. It reads values to ask whether a gradient overflowed or how large their norm is: none does, and it is zero.
Gradients are not clipped, so nothing depends on that. Not traced: what streams beside the main one hold for longer
(`record_stream`) on a GPU, and the power of two that torch rounds pinned memory up to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import deepspeed.comm.comm
import torch
from deepspeed.accelerator import real_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from deepspeed.utils import groups
from torch import Tensor, nn
from transformers import PreTrainedModel

from autotune.candidate import Candidate
from autotune.units import GIB
from autotune.worker.techniques.precision import cast_parameter
from autotune.worker.techniques.sharding.deepspeed import DeepSpeedEngine
from autotune.worker.tracing.fakes.autocast import NAME
from autotune.worker.tracing.storage_recorder import StorageRecorder

Changes = list[tuple[Any, str, Any]]


def fake_engine(
    recorder: StorageRecorder, device: torch.device, move: Callable[[nn.Module, torch.device], None]
) -> Changes:
    """Return what has to be replaced while DeepSpeed's engine runs under a recorder; `move` places a model."""

    def step(engine: DeepSpeedEngine) -> None:
        with recorder.reading_zeros():
            take_step(engine)

    def look_for_overflow(zero: Any, parameter: Tensor) -> None:
        with recorder.reading_zeros():
            look(zero, parameter)

    def make(
        engine: DeepSpeedEngine, model: nn.Module, optimizer: Any, candidate: Candidate, width: int, _: Any
    ) -> None:
        if candidate.sharding == "zero3" and candidate.precision == "bf16":
            # DeepSpeed casts what it moves before it moves it; here it finds both done.
            for parameter in model.parameters():
                cast_parameter(parameter, torch.bfloat16)
        move(model, device)  # the optimizer must not know the tensors from before
        set_up(engine, model, optimizer, candidate, width, device)

    def to(module: nn.Module, *_: Any, **__: Any) -> nn.Module:
        return module

    look = DeepSpeedZeroOptimizer.update_offload_overflow_tracker_for_param_grad
    take_step, set_up = DeepSpeedEngine.step, DeepSpeedEngine.__init__
    return [
        # DeepSpeed remembers the device and the first group of a process; each trace has its own.
        (real_accelerator, "ds_accelerator", CPU_Accelerator() if device.type == "cpu" else _StandIn()),
        (deepspeed.comm.comm, "cdb", None),
        (groups, "_WORLD_GROUP", None),
        (nn.Module, "to", to),
        (PreTrainedModel, "to", to),
        (DeepSpeedEngine, "__init__", make),
        (DeepSpeedEngine, "step", step),
        # Under offload it asks as gradients arrive.
        (DeepSpeedZeroOptimizer, "update_offload_overflow_tracker_for_param_grad", look_for_overflow),
        (Tensor, "record_stream", lambda *_: None),
    ]


class _StandIn(CPU_Accelerator):  # type: ignore[misc]  # mypy does not follow DeepSpeed
    """The stand-in for a CUDA device, as DeepSpeed knows devices; it answers as DeepSpeed's CUDA does."""

    def is_synchronized_device(self) -> bool:
        return False

    def device_name(self, device_index: int | None = None) -> str:
        return NAME if device_index is None else f"{NAME}:{device_index}"

    def current_device(self) -> int:
        return 0

    def current_device_name(self) -> str:
        return f"{NAME}:0"

    def device_count(self) -> int:
        return 1

    def available_memory(self, device_index: int | None = None) -> int:  # noqa: ARG002 - the contract
        return 1 << 20 * GIB  # room to flatten parameters where they are

    def pin_memory(self, tensor: Tensor, make_copy: bool = True, match_shape: bool = True) -> Tensor:  # noqa: ARG002
        return torch.empty_like(tensor).copy_(tensor)  # where CUDA cannot pin, it would be the tensor itself

    def on_accelerator(self, tensor: Tensor) -> bool:
        return bool(tensor.device.type == NAME)

    @property
    def Stream(self) -> Any:
        return getattr(torch, NAME).Stream

    @property
    def Event(self) -> Any:
        return getattr(torch, NAME).Event

    def stream(self, stream: Any) -> Any:
        return getattr(torch, NAME).stream(stream)

    def current_stream(self, device_index: int | None = None) -> Any:
        return getattr(torch, NAME).current_stream(device_index)

    def default_stream(self, device_index: int | None = None) -> Any:
        return getattr(torch, NAME).current_stream(device_index)

    @property
    def ByteTensor(self) -> Any:
        return partial(torch.tensor, dtype=torch.uint8, device=torch.device(NAME, 0))

    @property
    def FloatTensor(self) -> Any:
        return partial(torch.tensor, dtype=torch.float, device=torch.device(NAME, 0))
