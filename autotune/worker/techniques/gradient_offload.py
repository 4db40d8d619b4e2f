"""Offload of gradients from a GPU: each leaves for the host or the disk as soon as it is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from autotune.worker.techniques.offload_store import OffloadStore

SLICE = 16 * 2**20
"""Bytes of an earlier gradient that are back on the device at a time, while the next one is added to it."""


class HostGradients:
    """The gradients of some parameters, kept off the device between backward and the optimizer step.

    Between passes a parameter's own `grad` is None. Gradients of several micro-steps are added on the device, a
    slice at a time, so the sum is the one that autograd would make. Copies are on the computation's own stream:
    they wait for it and it for them, and no memory is held for longer than it is in use.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], store: OffloadStore) -> None:
        self._store = store
        self._rooms: dict[Tensor, Tensor] = {}
        """Room by parameter, kept from step to step."""
        self._waiting: dict[Tensor, Tensor] = {}
        """Those that hold a gradient now."""
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._take)

    def __contains__(self, parameter: Tensor) -> bool:
        return parameter in self._waiting

    def bring(self, parameter: nn.Parameter, to: Tensor) -> None:
        """Start copying a parameter's gradient to the device, on the current stream."""
        self._store.fetch(self._waiting[parameter], to)

    def all(self) -> Iterator[Tensor]:
        """Return every gradient where it is kept, after waiting for copies under way."""
        self._store.settle()
        return iter(self._waiting.values())

    def stand_in(self, parameter: Tensor, other: Tensor, room_like: Callable[[Tensor], Tensor]) -> None:
        """Hold for a parameter what is held for another one like it, in room of its own: for passes that left it out.

        `room_like` makes that, of the other's, where there is none yet.
        """
        if other not in self._waiting:
            return
        if parameter not in self._rooms:
            self._rooms[parameter] = room_like(self._rooms[other])
        self._waiting[parameter] = self._rooms[parameter]

    def clear(self) -> None:
        """Forget the gradients, and keep their memory for the next."""
        self._waiting.clear()

    def _take(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        earlier = self._waiting.get(parameter)
        if earlier is not None:
            self._add(gradient, earlier)
        room = self._rooms.get(parameter)
        if room is None:
            room = self._rooms[parameter] = self._store.room_like(gradient)
        self._store.store(gradient, room)
        self._waiting[parameter] = room
        parameter.grad = None

    def _add(self, gradient: Tensor, earlier: Tensor) -> None:
        """Add an offloaded gradient to one on the device."""
        count = max(1, SLICE // gradient.element_size())
        parts = (
            zip(gradient.view(-1).split(count), earlier.view(-1).split(count), strict=True)
            if gradient.is_contiguous()
            else [(gradient, earlier)]
        )
        for part, before in parts:
            back = torch.empty_like(part)
            self._store.fetch(before, back)
            part.add_(back)
