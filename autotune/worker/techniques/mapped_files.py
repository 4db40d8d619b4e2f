"""Offload to disk: tensors in files that are mapped into memory, and updated in place."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from autotune.devices.host import available_memory, total_memory
from autotune.worker.errors import DiskRefused, OutOfSpace
from autotune.worker.techniques.optimizer import MakeOptimizer, state_tensors

SMALL = 1 << 20
"""Bytes of a parameter for which it is not worth asking how much memory is left."""


class MappedFiles:
    """Makes tensors whose memory is a file in `folder`.

    The kernel writes such pages back and reclaims them, and does not count them as private memory. Each file
    is unlinked once it is mapped: it goes with its tensor, and with the process however that ends. Disk space
    is reserved in full beforehand, since a write into a hole of a full disk would kill the process (SIGBUS).
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self.bytes = 0
        """Bytes mapped so far, those of tensors that are gone included."""
        self._free_at_first: int | None = None

    def zeros_like(self, tensor: Tensor) -> Tensor:
        """Return zeros of the tensor's shape, type and layout, in a file.

        On a full disk raises OutOfSpace where these files alone need more than was free before the first of them, and
        DiskRefused where something else took it.
        """
        layout = torch.empty_like(tensor, device="meta", requires_grad=False)
        size = layout.untyped_storage().nbytes()
        if size == 0:
            return torch.zeros_like(tensor, requires_grad=False)
        if self._free_at_first is None:
            self._free_at_first = shutil.disk_usage(self._folder).free
        descriptor, path = tempfile.mkstemp(suffix=".tensor", dir=self._folder)
        try:
            os.posix_fallocate(descriptor, 0, size)
            storage = torch.UntypedStorage.from_file(path, shared=True, nbytes=size)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                raise
            free = shutil.disk_usage(self._folder).free
            if self.bytes + size <= self._free_at_first and error.errno != errno.EFBIG:
                raise DiskRefused(str(self._folder), size, free, str(error.strerror)) from error
            message = f"{self._folder} has no room for {size} bytes of offloaded tensors: {error.strerror}"
            raise OutOfSpace("disk", size, free, message) from error
        finally:
            os.close(descriptor)
            os.unlink(path)
        self.bytes += size
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(storage, 0, layout.size(), layout.stride())

    def copy_of(self, tensor: Tensor) -> Tensor:
        """Return the tensor's values in a file."""
        return self.zeros_like(tensor).copy_(tensor.detach())


def is_mapped(tensor: Tensor) -> bool:
    """Tell whether the tensor's memory is a mapped file."""
    return tensor.untyped_storage().filename is not None


def host_is_short(parameter: Tensor) -> bool:
    """Tell whether less than a quarter of the host's memory is free beside a parameter; never in a trace.

    Without swap the kernel ends processes when none is left; pages of files it writes back and takes.
    """
    size = parameter.numel() * parameter.itemsize
    if isinstance(parameter, FakeTensor) or size < SMALL:
        return False
    return bool(available_memory() - size < total_memory() / 4)


@contextmanager
def parameters_in(files: MappedFiles, when: Callable[[Tensor], bool] | None = None) -> Iterator[None]:
    """While open, every parameter that a module registers on the CPU moves into a file at once, or those `when` says.

    So a model is built with one parameter at a time in memory, by its own code, and draws the same random
    numbers: its weights are those of an ordinary build, bit for bit.
    """

    def place(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        if parameter is None or parameter.device.type != "cpu" or is_mapped(parameter):
            return
        if when is None or when(parameter):
            parameter.data = files.copy_of(parameter)

    handle = register_module_parameter_registration_hook(place)
    try:
        yield
    finally:
        handle.remove()


def map_parameters(model: nn.Module, files: MappedFiles) -> None:
    """Move the parameters that are not in a file yet: copies of a module, for one, are never registered."""
    for parameter in model.parameters():
        if not is_mapped(parameter):
            parameter.data = files.copy_of(parameter)


def map_gradients(parameters: Iterable[nn.Parameter], files: MappedFiles) -> None:
    """Keep every gradient in a file, from the moment it is first accumulated.

    The first gradient after a `zero_grad` is copied to the file, later ones are added to it in place: the
    same arithmetic as without offload. A parameter that meets no gradient keeps None, as it would. Of a distributed
    gradient it is this rank's shard.
    """

    def keep(parameter: nn.Parameter) -> None:
        whole = parameter.grad
        if whole is None:
            return
        gradient = whole.to_local() if hasattr(whole, "to_local") else whole
        if is_mapped(gradient):
            return
        file = kept.get(parameter)
        if file is None:
            file = kept[parameter] = files.zeros_like(gradient)
        file.copy_(gradient)
        if hasattr(whole, "to_local"):
            whole._local_tensor = file
        else:
            parameter.grad = file

    kept: dict[nn.Parameter, Tensor] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(keep)


class MappedOptimizer:
    """One torch optimizer for each parameter, with state in files, made and updated there."""

    def __init__(self, parameters: Iterable[nn.Parameter], make: MakeOptimizer, files: MappedFiles) -> None:
        self._optimizers = [make([parameter]) for parameter in parameters if parameter.requires_grad]
        self._files = files

    def step(self) -> None:
        """Update every parameter from its gradient."""
        for optimizer in self._optimizers:
            if optimizer.state:
                optimizer.step()
            else:
                with _StateIn(self._files):
                    optimizer.step()
                self._move(optimizer)

    def _move(self, optimizer: torch.optim.Optimizer) -> None:
        """Move state that was made by other means: SGD's moment is a copy of the first gradient."""
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim() > 0 and not is_mapped(value):
                    state[name] = self._files.copy_of(value)

    def zero_grad(self) -> None:
        """Drop the gradients, so that their memory is free until the next backward pass."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state_tensors(self) -> Iterator[Tensor]:
        """Return every tensor of the optimizer's state."""
        return state_tensors(self._optimizers)


class _StateIn(TorchFunctionMode):  # type: ignore[misc]  # mypy does not follow torch
    """While open, `torch.zeros_like`, by which AdamW makes its state, makes it in a file."""

    def __init__(self, files: MappedFiles) -> None:
        super().__init__()
        self._files = files

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.zeros_like and not (kwargs or {}).get("dtype"):
            return self._files.zeros_like(args[0])
        return func(*args, **(kwargs or {}))
