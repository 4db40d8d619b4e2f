"""One build for all ranks: rank 0 draws the weights, which arrive on the others as they are sharded.

Initialization draws parameters in another order than they are sharded in, and layers of it overwrite each other, so a
shard cannot be drawn by itself. Rank 0 builds the whole model, off the device; the others build its skeleton, whose
parameters take no memory. Before a module is sharded its tensors are sent from rank 0, and its shards are all that is
left of them: rank 0 holds less with every module, and the others never hold more than one beside their shards. Equal
seeds give the weights of a build on one rank, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakIdKeyDictionary

from autotune.worker.techniques.mapped_files import MappedFiles

MESSAGE = 1 << 28
"""Bytes sent at a time: a collective's buffers stay small, however large a parameter is."""


@contextmanager
def skeleton() -> Iterator[None]:
    """While open, every parameter that a module registers on the CPU is one on the meta device at once, with no memory.

    Buffers and other tensors are made as they are. Not covered: code that reads values of a parameter while it builds,
    which torch refuses with a RuntimeError.
    """
    made = WeakIdKeyDictionary()  # one that several modules share stays one

    def empty(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or type(parameter) is not nn.Parameter or parameter.device.type != "cpu":
            return None
        bare = made.get(parameter)
        if bare is None:
            there = torch.empty_like(parameter, device="meta")
            bare = made[parameter] = nn.Parameter(there, requires_grad=parameter.requires_grad)
            vars(bare).update(vars(parameter))
        return bare

    handle = register_module_parameter_registration_hook(empty)
    try:
        yield
    finally:
        handle.remove()


class Rank0Weights:
    """The tensors of a model that rank 0 has whole, on their way to all ranks of the group.

    They arrive on `device`, on the CPU in `files` where there are some, and wait there until they are sharded. Every
    rank has to ask for the same modules in the same order.
    """

    def __init__(self, device: torch.device, files: MappedFiles | None = None) -> None:
        self._device = device
        self._files = files
        self._waiting: dict[int, _Awaited] | None = None

    def bring(self, modules: Iterable[nn.Module], model: nn.Module) -> None:
        """Give modules of `model` rank 0's values of the parameters and buffers that are their own, on the device.

        What is shared with other modules arrives there too, and stays shared. What has arrived is left as it is.
        """
        if self._waiting is None:
            self._waiting = _awaited(model)
            # Rank 0 may take minutes to draw; gloo waits for half an hour without holding a GPU, NCCL for ten minutes.
            dist.broadcast(torch.zeros(1), src=0)
        for module in modules:
            for tensors in (module._parameters, module._buffers):
                for tensor in list(tensors.values()):
                    found = self._waiting.pop(id(tensor), None)
                    if found is not None:
                        self._send(found)

    def _send(self, found: _Awaited) -> None:
        tensor = found.tensor
        here = self._here(tensor)
        flat = here.detach().contiguous()
        for message in flat.reshape(-1).view(torch.uint8).split(MESSAGE):
            dist.broadcast(message, src=0)
        if not here.is_contiguous():
            here.detach().copy_(flat)
        if here is tensor:
            return
        if isinstance(tensor, nn.Parameter):
            attributes = vars(tensor)
            here = nn.Parameter(here, requires_grad=tensor.requires_grad)
            vars(here).update(attributes)
        for tensors, name in found.places:
            tensors[name] = here

    def _here(self, tensor: Tensor) -> Tensor:
        """Return the tensor with memory where it arrives, and with its values as far as this rank has them."""
        if tensor.device.type != "meta":
            return tensor.detach().to(self._device) if tensor.device != self._device else tensor
        if self._files is not None and self._device.type == "cpu":
            return self._files.zeros_like(tensor)
        return torch.empty_like(tensor, device=self._device, requires_grad=False)


class _Awaited:
    """A tensor that has not arrived, and where modules hold it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.places: list[tuple[dict[str, Any], str]] = []


def _awaited(model: nn.Module) -> dict[int, _Awaited]:
    """Return the model's tensors by their identity; each is kept, so no number is used twice."""
    found: dict[int, _Awaited] = {}
    for part in model.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    found.setdefault(id(tensor), _Awaited(tensor)).places.append((tensors, name))
    return found
