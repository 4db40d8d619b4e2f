"""Offload of gradients from a GPU: each leaves for pinned host memory as soon as it is complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from autotune.train.refusal import OutOfSpace

SLICE = 16 * 2**20
"""Bytes of an earlier gradient that are back on the device at a time, while the next one is added to it."""


def host_like(tensor: Tensor, pin: bool) -> Tensor:
    """Return host memory for a tensor. Raises OutOfSpace where pinned memory is refused."""
    try:
        return torch.empty_like(tensor, device="cpu", pin_memory=pin)
    except RuntimeError as error:  # torch has no type of its own for pinned memory that is refused
        size = tensor.numel() * tensor.element_size()
        raise OutOfSpace("host", size, None, f"pinned host memory was refused: {error}") from error


class HostGradients:
    """The gradients of some parameters, between backward and the optimizer step, in host memory.

    Between passes a parameter's own `grad` is None. Gradients of several micro-steps are added on the device, a
    slice at a time, so the sum is the one that autograd would make. Copies are on the computation's own stream:
    they wait for it and it for them, and no memory is held for longer than it is in use.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        self._pin = device.type == "cuda"
        self._module: Any = torch.get_device_module(device)
        self._rooms: dict[Tensor, Tensor] = {}
        """Host memory by parameter, kept from step to step."""
        self._waiting: dict[Tensor, Tensor] = {}
        """Those that hold a gradient now."""
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._take)

    def __contains__(self, parameter: Tensor) -> bool:
        return parameter in self._waiting

    def bring(self, parameter: nn.Parameter, to: Tensor) -> None:
        """Start copying a parameter's gradient to the device, on the current stream."""
        to.copy_(self._waiting[parameter], non_blocking=True)

    def all(self) -> Iterator[Tensor]:
        """Every gradient, on the host; waits for those that are still on their way."""
        self._module.synchronize()
        return iter(self._waiting.values())

    def clear(self) -> None:
        """Forget the gradients, and keep their memory for the next."""
        self._waiting.clear()

    def _take(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        earlier = self._waiting.get(parameter)
        if earlier is not None:
            _add(gradient, earlier)
        room = self._rooms.get(parameter)
        if room is None:
            room = self._rooms[parameter] = host_like(gradient, self._pin)
        room.copy_(gradient, non_blocking=True)
        self._waiting[parameter] = room
        parameter.grad = None


def _add(gradient: Tensor, earlier: Tensor) -> None:
    """Add what is on the host to a gradient on the device."""
    count = max(1, SLICE // gradient.element_size())
    flat = gradient.is_contiguous()
    parts = (
        zip(gradient.view(-1).split(count), earlier.view(-1).split(count), strict=True)
        if flat
        else [(gradient, earlier)]
    )
    for part, before in parts:
        part.add_(before.to(part.device, non_blocking=True))
