"""Activation offload: what forward saves for backward is kept on the host or on disk."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from autotune.worker.techniques.compiled_weights import WEIGHT_COPIES
from autotune.worker.techniques.mapped_files import MappedFiles
from autotune.worker.techniques.offload_store import OffloadStore
from autotune.worker.training import Batch

SMALL = 64 << 10
"""Bytes a sample: less is not worth its latency, some 10 us over PCIe against 2.5 us for the bytes. Counted by the
sample, so that the same tensors are moved at every micro-batch."""
IN_FLIGHT = 1
"""Storages that are still being copied away while the next one is."""


SAME_VALUES = ("TBackward0", "ToCopyBackward0", "TransposeBackward0", "ViewBackward0", "_RowsBackward")
"""What autograd calls views and casts, and the whole of chosen rows."""

Fetch = Callable[[Tensor], tuple[Tensor, Any]]
"""From an offloaded tensor to its copy on the device, and the event after which the copy is complete."""

Neighbour = Callable[[], "_Moved | None"]
"""A weak reference to what was saved before or after."""


class ActivationOffload:
    """Moves the storages that autograd saves, each once however many views of it are saved.

    Copies off the device run on a stream of their own and overlap with the forward pass. In backward, the storage
    that was saved before the one wanted is fetched ahead; what many blocks save, a mask say, counts where it was saved
    last, since backward wants it there first. Parameters and their low-precision copies stay: they belong to the model.
    On the cpu device a storage is kept in a mapped file and used from there.
    """

    def __init__(self, device: torch.device, place: MappedFiles | OffloadStore) -> None:
        """Take files to use in place (on the cpu device), or where to copy to and from."""
        self._device = device
        self._files = place if isinstance(place, MappedFiles) else None
        if not isinstance(place, MappedFiles):
            self._place = place
            self._module: Any = torch.get_device_module(device)
            self._up, self._down = self._module.Stream(), self._module.Stream()
        self._known: dict[tuple[int, int], tuple[StorageWeakRef, weakref.ref[_Moved]]] = {}
        self._leaving: deque[tuple[Tensor, Any]] = deque()
        self._latest: Neighbour = _nobody
        self._samples = 1

    @contextmanager
    def __call__(self, batch: Batch) -> Iterator[None]:
        """Move what is saved while open, for a forward pass over `batch`."""
        self._latest = _nobody
        with self.keeping(next(iter(batch.values())).shape[0]):
            yield

    @contextmanager
    def keeping(self, samples: int) -> Iterator[None]:
        """Move what is saved while open, for so many samples; what was moved last before is fetched ahead of it."""
        self._samples = samples
        try:
            with saved_tensors_hooks(self._pack, _unpack):
                yield
        finally:
            self._known.clear()
            while self._leaving:
                self._arrive()

    def _pack(self, tensor: Tensor) -> Any:
        if not self._is_worth_it(tensor):
            return tensor
        moved = self._moved(tensor.detach())
        moved.views += 1
        self._saved_last(moved)
        return moved, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()

    def _is_worth_it(self, tensor: Tensor) -> bool:
        shape = tensor.shape
        return (
            type(tensor) is not torch.nn.Parameter
            and tensor.layout is torch.strided
            and tensor.device.type == self._device.type
            and len(shape) > 1
            # Compiled blocks keep matrices transposed too, whose columns are the batch's rows.
            and (shape[0] % self._samples == 0 or (len(shape) == 2 and shape[1] % self._samples == 0))
            and tensor.numel() * tensor.element_size() >= SMALL * self._samples
            and not _comes_from_a_parameter(tensor)
            and tensor not in WEIGHT_COPIES
        )

    def _moved(self, tensor: Tensor) -> _Moved:
        """Return the tensor's storage as it is kept off the device; move it there unless that was done."""
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor._version)
        if key in self._known:
            alive, known = self._known[key]
            moved = known()
            if moved is not None and not alive.expired():
                return moved
        flat = tensor.as_strided((storage.nbytes() // tensor.element_size(),), (1,), 0)
        moved = _Moved(self._stored(flat), self._fetch if self._files is None else None)
        self._known[key] = (StorageWeakRef(storage), weakref.ref(moved))
        return moved

    def _saved_last(self, moved: _Moved) -> None:
        latest = self._latest()
        if moved is not latest:
            moved.leave_its_place()
            moved.follow(latest)
            self._latest = weakref.ref(moved)

    def _stored(self, flat: Tensor) -> Tensor:
        if self._files is not None:
            return self._files.copy_of(flat)
        while len(self._leaving) > IN_FLIGHT:
            self._arrive()
        host = self._place.room_like(flat)
        self._down.wait_stream(self._module.current_stream())
        with self._module.stream(self._down):
            self._place.store(flat, host)
        self._leaving.append((flat, self._down.record_event()))
        return host

    def _arrive(self) -> None:
        """Let go of the oldest storage on its way; later work waits until it is there."""
        _, done = self._leaving.popleft()
        self._module.current_stream().wait_event(done)

    def _fetch(self, host: Tensor) -> tuple[Tensor, Any]:
        """Start copying a storage back; return it with the event after which it is complete."""
        flat = torch.empty_like(host, device=self._device, pin_memory=False)
        self._up.wait_stream(self._module.current_stream())
        with self._module.stream(self._up):
            self._place.fetch(host, flat)
        return flat, self._up.record_event()


def _nobody() -> None:
    return None


class _Moved:
    """One storage, off the device."""

    def __init__(self, stored: Tensor, fetch: Fetch | None) -> None:
        self.views = 0
        """Saved views of it that backward has not asked for yet."""
        self._stored = stored
        self._fetch = fetch
        # Weak, since autograd's graph alone decides how long a storage is kept.
        self._before: Neighbour = _nobody
        self._after: Neighbour = _nobody
        self._arriving: tuple[Tensor, Any] | None = None
        self._flat: Tensor | None = None

    def follow(self, other: _Moved | None) -> None:
        """Be the one that was saved after another."""
        self._before, self._after = _nobody, _nobody
        if other is not None:
            self._before, other._after = weakref.ref(other), weakref.ref(self)

    def leave_its_place(self) -> None:
        """Let those before and after it follow each other."""
        before, after = self._before(), self._after()
        if before is not None:
            before._after = self._after
        if after is not None:
            after._before = self._before

    def back(self) -> Tensor:
        """Return the storage as a flat tensor on the device, and start fetching the one that was saved before.

        It is kept until the last view has been asked for, so that all views share it again.
        """
        if self._fetch is None:
            return self._stored
        if (flat := self._flat) is None:
            flat, arrived = self._arriving or self._fetch(self._stored)
            self._arriving = None
            torch.get_device_module(flat.device).current_stream().wait_event(arrived)
            before = self._before()
            if before is not None:
                before.fetch_ahead()
        self.views -= 1
        self._flat = flat if self.views > 0 else None
        return flat

    def fetch_ahead(self) -> None:
        """Start fetching, so that `back` need not wait."""
        if self._fetch is not None and self._arriving is None and self._flat is None:
            self._arriving = self._fetch(self._stored)


def _unpack(packed: Any) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    moved, dtype, shape, stride, offset = packed
    flat = moved.back()
    flat = flat if flat.dtype == dtype else flat.view(dtype)
    restored: Tensor = flat.as_strided(shape, stride, offset)
    return restored


def _comes_from_a_parameter(tensor: Tensor) -> bool:
    """Tell whether a tensor is a parameter, or a view of one, or autocast's copy of one that trains.

    Autocast keeps no copy of a frozen parameter: what is saved of one lives from forward to backward, as activations
    do.
    """
    if tensor._is_view() and isinstance(tensor._base, torch.nn.Parameter):
        return True
    node: Any = tensor.grad_fn
    if node is None:
        return bool(tensor.requires_grad)
    while node.name() in SAME_VALUES:
        node = node.next_functions[0][0]
    return bool(node is not None and node.name() == "torch::autograd::AccumulateGrad")
