"""Offload of optimizer state from a GPU: it rests in pinned host memory and visits the device for a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from autotune.train.optimizers import MakeOptimizer, state_tensors
from autotune.train.refusal import OutOfSpace

IN_FLIGHT = 1
"""Parameters whose state is on its way back while the next one's is updated and a third's arrives."""


class StreamedOptimizer:
    """One torch optimizer for each parameter; state crosses to the device and back, parameter by parameter.

    Upload, update and download of three successive parameters overlap, on streams of their own, so at most
    three parameters' state is on the device at once (at the first step too, which creates it there). On a
    device without streams (`cpu`) the same copies run one after another.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], make: MakeOptimizer, device: torch.device) -> None:
        self._slots = [_Slot(p, make([p])) for p in parameters if p.requires_grad]
        self._pin = device.type == "cuda"
        self._module: Any = torch.get_device_module(device)
        # Made once: a stream owns its share of the caching allocator, so new streams would hold new memory.
        self._up, self._down = self._module.Stream(), self._module.Stream()

    def step(self) -> None:
        compute = self._module.current_stream()
        slots = [slot for slot in self._slots if slot.parameter.grad is not None]
        leaving: deque[_Departure] = deque()
        arrived = self._upload(slots[0]) if slots else None
        for position, slot in enumerate(slots):
            while len(leaving) > IN_FLIGHT:
                compute.wait_event(leaving.popleft().done)
            arriving = self._upload(slots[position + 1]) if position + 1 < len(slots) else None
            compute.wait_event(arrived)
            slot.optimizer.step()
            leaving.append(self._download(slot))
            arrived = arriving
        # The device copies may be freed once all later work of this stream comes after the last download.
        compute.wait_stream(self._down)

    def _upload(self, slot: _Slot) -> Any:
        """Start copying a parameter's state to the device; return the event of its arrival."""
        self._up.wait_stream(self._module.current_stream())
        state = slot.optimizer.state[slot.parameter] if slot.host else {}
        copies = {
            name: torch.empty_like(host, device=slot.parameter.device) for name, host in slot.host.items()
        }
        with self._module.stream(self._up):
            for name, copy in copies.items():
                copy.copy_(slot.host[name], non_blocking=True)
        state.update(copies)
        return self._up.record_event()

    def _download(self, slot: _Slot) -> _Departure:
        """Start copying a parameter's state to the host, and leave it there between steps."""
        state = slot.optimizer.state[slot.parameter]
        # The step counter is one number, which the fused kernel wants beside the parameter.
        copies = {
            name: value for name, value in state.items() if isinstance(value, Tensor) and value.dim() > 0
        }
        for name, copy in copies.items():
            if name not in slot.host:
                slot.host[name] = self._host_like(copy)
        self._down.wait_stream(self._module.current_stream())
        with self._module.stream(self._down):
            for name, copy in copies.items():
                slot.host[name].copy_(copy, non_blocking=True)
        state.update(slot.host)
        return _Departure(list(copies.values()), self._down.record_event())

    def _host_like(self, tensor: Tensor) -> Tensor:
        try:
            return torch.empty_like(tensor, device="cpu", pin_memory=self._pin)
        except RuntimeError as error:  # torch has no type of its own for pinned memory that is refused
            size = tensor.numel() * tensor.element_size()
            raise OutOfSpace("host", size, None, f"pinned host memory was refused: {error}") from error

    def zero_grad(self) -> None:
        for slot in self._slots:
            slot.optimizer.zero_grad(set_to_none=True)

    def state_tensors(self) -> Iterator[Tensor]:
        """Every tensor of state, on the host; waits for those that are still on their way."""
        self._module.synchronize()
        return state_tensors(slot.optimizer for slot in self._slots)


@dataclass
class _Slot:
    parameter: nn.Parameter
    optimizer: torch.optim.Optimizer
    host: dict[str, Tensor] = field(default_factory=dict)
    """The state's tensors of the parameter's shape, where they rest."""


@dataclass(frozen=True)
class _Departure:
    copies: list[Tensor]
    """Held, so that their memory is not given to others while it is still read."""
    done: Any
    """Event of the end of the download."""
