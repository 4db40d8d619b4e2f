"""Offload of optimizer state from a GPU: it is kept on the host or on disk, and is on the device for a step only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from autotune.worker.techniques.gradient_offload import HostGradients
from autotune.worker.techniques.offload_store import OffloadStore
from autotune.worker.techniques.optimizer import MakeOptimizer, state_tensors

IN_FLIGHT = 1
"""Parameters whose state is on its way back while the next one's is updated and a third's arrives."""


class StreamedOptimizer:
    """One torch optimizer for each parameter; state crosses to the device and back, parameter by parameter.

    Upload, update and download of three successive parameters overlap, on streams of their own, so at most
    three parameters' state is on the device at once (at the first step too, which creates it there). `gradients`
    that are offloaded too come with it. On a device without streams (`cpu`) the same copies run one after another.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        make: MakeOptimizer,
        device: torch.device,
        store: OffloadStore,
        gradients: HostGradients | None = None,
    ) -> None:
        self._gradients = gradients
        self._slots = [_Slot(p, make([p])) for p in parameters if p.requires_grad]
        self._store = store
        self._module: Any = torch.get_device_module(device)
        # Made once: a stream owns its share of the caching allocator, so new streams would hold new memory.
        self._up, self._down = self._module.Stream(), self._module.Stream()

    def step(self) -> None:
        """Update parameter by parameter, while the next one's state comes and the last one's leaves."""
        compute = self._module.current_stream()
        slots = [slot for slot in self._slots if self._has_gradient(slot.parameter)]
        leaving: deque[_Departure] = deque()
        arrived = self._upload(slots[0]) if slots else None
        for position, slot in enumerate(slots):
            while len(leaving) > IN_FLIGHT:
                compute.wait_event(leaving.popleft().done)
            arriving = self._upload(slots[position + 1]) if position + 1 < len(slots) else None
            compute.wait_event(arrived)
            if self._gradients is not None:
                slot.parameter.grad, slot.gradient = slot.gradient, None
            slot.optimizer.step()
            if self._gradients is not None:
                slot.parameter.grad = None
            leaving.append(self._download(slot))
            arrived = arriving
        # The device copies may be freed once all later work of this stream comes after the last download.
        compute.wait_stream(self._down)

    def _has_gradient(self, parameter: nn.Parameter) -> bool:
        return parameter.grad is not None if self._gradients is None else parameter in self._gradients

    def _upload(self, slot: _Slot) -> Any:
        """Start copying a parameter's state to the device; return the event after which it is complete."""
        self._up.wait_stream(self._module.current_stream())
        if self._gradients is not None:
            slot.gradient = torch.empty_like(slot.parameter, requires_grad=False)
        state = slot.optimizer.state[slot.parameter] if slot.host else {}
        copies = {
            name: torch.empty_like(host, device=slot.parameter.device) for name, host in slot.host.items()
        }
        with self._module.stream(self._up):
            for name, copy in copies.items():
                self._store.fetch(slot.host[name], copy)
            if self._gradients is not None and slot.gradient is not None:
                self._gradients.bring(slot.parameter, slot.gradient)
        state.update(copies)
        return self._up.record_event()

    def _download(self, slot: _Slot) -> _Departure:
        """Start copying a parameter's state to the offload store, where it stays between steps."""
        state = slot.optimizer.state[slot.parameter]
        # The step counter is one number, which the fused kernel wants beside the parameter.
        copies = {
            name: value for name, value in state.items() if isinstance(value, Tensor) and value.dim() > 0
        }
        for name, copy in copies.items():
            if name not in slot.host:
                slot.host[name] = self._store.room_like(copy)
        self._down.wait_stream(self._module.current_stream())
        with self._module.stream(self._down):
            for name, copy in copies.items():
                self._store.store(copy, slot.host[name])
        state.update(slot.host)
        return _Departure(list(copies.values()), self._down.record_event())

    def zero_grad(self) -> None:
        """Drop the gradients, wherever they are kept."""
        for slot in self._slots:
            slot.optimizer.zero_grad(set_to_none=True)
        if self._gradients is not None:
            self._gradients.clear()

    def state_tensors(self) -> Iterator[Tensor]:
        """Return every tensor of state where it is kept, after waiting for copies under way."""
        self._store.settle()
        return state_tensors(slot.optimizer for slot in self._slots)


@dataclass
class _Slot:
    parameter: nn.Parameter
    optimizer: torch.optim.Optimizer
    host: dict[str, Tensor] = field(default_factory=dict)
    """The state's tensors of the parameter's shape, in the offload store."""
    gradient: Tensor | None = None
    """Its gradient on the way back to the device; None where gradients stay there."""


@dataclass(frozen=True)
class _Departure:
    copies: list[Tensor]
    """Held, so that their memory is not given to others while it is still read."""
    done: Any
    """Event of the end of the download."""
