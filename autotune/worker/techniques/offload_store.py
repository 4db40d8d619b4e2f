"""Where tensors are kept that leave a GPU: pinned host memory, or files on disk behind a few pinned buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from autotune.candidate import Candidate
from autotune.worker.errors import OutOfSpace, refused_on_host
from autotune.worker.techniques.mapped_files import MappedFiles

BUFFER = 16 << 20
"""Bytes of a pinned buffer between disk and device: at 5 GB/s, which fast disks reach, 3 ms of copying, so that what a
copy costs to start is nothing beside it. Not tuned on a GPU."""
BUFFERS = 4
"""Pinned buffers, which are filled and emptied in turn: as the disk takes from one, the device fills the others."""


class OffloadStore(Protocol):
    """A place off the device, and the way there and back on whichever stream is the current one."""

    files: MappedFiles | None
    """The files that tensors are kept in; None for host memory."""

    def room_like(self, tensor: Tensor) -> Tensor:
        """Return room for a tensor, with any values. Raises OutOfSpace where there is none."""
        ...

    def store(self, tensor: Tensor, room: Tensor) -> None:
        """Start copying a tensor of the device to its room."""
        ...

    def fetch(self, room: Tensor, tensor: Tensor) -> None:
        """Start copying to a tensor of the device what was stored last in the room, or in a part of it."""
        ...

    def settle(self) -> None:
        """Wait until all that was stored is in its room."""
        ...


class HostStore:
    """Host memory, pinned where a GPU copies from it."""

    def __init__(self, device: torch.device) -> None:
        self.files: MappedFiles | None = None
        self._pin = device.type == "cuda"
        self._module: Any = torch.get_device_module(device)

    def room_like(self, tensor: Tensor) -> Tensor:
        """Return room for a tensor, with any values. Raises OutOfSpace where there is none."""
        with _pinning(tensor.numel() * tensor.element_size()):
            return torch.empty_like(tensor, device="cpu", pin_memory=self._pin, requires_grad=False)

    def store(self, tensor: Tensor, room: Tensor) -> None:
        """Start copying a tensor of the device to its room."""
        room.copy_(tensor, non_blocking=True)

    def fetch(self, room: Tensor, tensor: Tensor) -> None:
        """Start copying to a tensor of the device what was stored last in the room, or in a part of it."""
        tensor.copy_(room, non_blocking=True)

    def settle(self) -> None:
        """Wait until all that was stored is in its room."""
        self._module.synchronize()


@dataclass
class _Buffer:
    memory: Tensor
    """Pinned bytes."""
    copied: Any = None
    """Event of the end of its copy from or to the device; None where there is none to wait for."""
    onward: Tensor | None = None
    """The part of a room that it is to be copied to."""


class DiskStore:
    """Mapped files. What is copied passes through a few pinned buffers, so host memory is needed for these alone.

    A GPU copies asynchronously from pinned memory only. The thread that asks writes and reads the files: it waits for
    the device where all buffers are full, while the device waits for nobody. The files' pages are the page cache's,
    which the kernel takes back when memory is wanted.
    """

    def __init__(self, files: MappedFiles, device: torch.device) -> None:
        self.files: MappedFiles | None = files
        self._room = files.zeros_like
        self._pin = device.type == "cuda"
        self._module: Any = torch.get_device_module(device)
        self._buffers: list[_Buffer] = []
        self._next = 0

    def room_like(self, tensor: Tensor) -> Tensor:
        """Return room for a tensor, with any values. Raises OutOfSpace where there is none."""
        return self._room(tensor)

    def store(self, tensor: Tensor, room: Tensor) -> None:
        """Start copying a tensor of the device to its room."""
        if not _alike(tensor, room):
            self.settle()
            room.copy_(tensor)
            return
        for part, onward in zip(_parts(tensor), _parts(room), strict=True):
            buffer = self._free()
            buffer.memory[: part.numel()].copy_(part, non_blocking=True)
            buffer.copied, buffer.onward = self._module.current_stream().record_event(), onward

    def fetch(self, room: Tensor, tensor: Tensor) -> None:
        """Start copying to a tensor of the device what was stored last in the room, or in a part of it."""
        storage = room.untyped_storage()._cdata
        if any(b.onward is not None and b.onward.untyped_storage()._cdata == storage for b in self._buffers):
            self.settle()
        if not _alike(tensor, room):
            tensor.copy_(room)
            return
        for part, origin in zip(_parts(tensor), _parts(room), strict=True):
            buffer = self._free()
            held = buffer.memory[: part.numel()]
            held.copy_(origin)
            part.copy_(held, non_blocking=True)
            buffer.copied = self._module.current_stream().record_event()

    def settle(self) -> None:
        """Wait until all that was stored is in its room."""
        # In the order in which they were filled: a room may have been stored to twice.
        for place in range(len(self._buffers)):
            _empty(self._buffers[(self._next + place) % len(self._buffers)])

    def _free(self) -> _Buffer:
        """Return the buffer that was filled longest ago, empty."""
        if not self._buffers:
            with _pinning(BUFFERS * BUFFER):
                memory = torch.empty(BUFFERS * BUFFER, dtype=torch.uint8, device="cpu", pin_memory=self._pin)
            self._buffers = [_Buffer(part) for part in memory.split(BUFFER)]
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        _empty(buffer)
        return buffer


def _empty(buffer: _Buffer) -> None:
    """Wait for a buffer's copy, and pass on what it holds."""
    if buffer.copied is not None:
        buffer.copied.synchronize()
    if buffer.onward is not None:
        buffer.onward.copy_(buffer.memory[: buffer.onward.numel()])
    buffer.copied = buffer.onward = None


@contextmanager
def _pinning(size: int) -> Iterator[None]:
    """Turn a refusal of `size` bytes of host memory into OutOfSpace."""
    try:
        yield
    except RuntimeError as error:  # torch has no type of its own for pinned memory that is refused
        if not refused_on_host(error):
            raise  # an illegal access of an earlier kernel, say, which surfaces here
        raise OutOfSpace("host", size, None, f"pinned host memory was refused: {error}") from error


def _alike(tensor: Tensor, room: Tensor) -> bool:
    """Tell whether two tensors are the same bytes in the same order, without gaps."""
    reach: int = sum((size - 1) * step for size, step in zip(room.shape, room.stride(), strict=True)) + 1
    return bool(tensor.stride() == room.stride() and tensor.dtype == room.dtype and reach == room.numel())


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return a tensor's bytes, a buffer's length at a time."""
    flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    parts: tuple[Tensor, ...] = flat.split(BUFFER)
    return parts


def offload_store(
    candidate: Candidate, folder: str, device: torch.device, files: bool | None = None
) -> MappedFiles | OffloadStore:
    """Return where a candidate's offload keeps its tensors: files in `folder` to use in place, or what copies.

    None takes `files` in place on `cpu`, and copies elsewhere.
    """
    if device.type == "cpu" if files is None else files:
        return MappedFiles(folder)
    to_disk = candidate.offload_place("cuda") == "disk"
    return DiskStore(MappedFiles(folder), device) if to_disk else HostStore(device)
