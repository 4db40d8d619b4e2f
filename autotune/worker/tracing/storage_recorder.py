"""Follow every storage of a training that runs on fake tensors: when it is allocated, released, and why."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from autotune.outcome import Phase
from autotune.timeline.step_events import CATEGORIES, Category, StepEvents
from autotune.worker.measuring.memory_breakdown import local
from autotune.worker.tracing.allocations import ACTIVATION, DEVICE, DISK, HOST, TEMPORARY, Allocations
from autotune.worker.tracing.constant_values import KnownValues
from autotune.worker.tracing.fake_op_cache import FakeOpCache, OpResult
from autotune.worker.tracing.kernel_workspace import Workspace
from autotune.worker.tracing.made_in_place import IN_PLACE, ONTO_ZEROS, overwritten
from autotune.worker.tracing.op_counter import OpCounter, OpNumbers

_ELSEWHERE = -1
"""The slot of a storage that is not recorded."""
_GROUPED_MM = getattr(torch.ops.aten._grouped_mm, "default", None)
_ONLY_WRITES = {torch.ops.aten._fused_sgd_.default, torch.ops.aten._fused_sgd_.tensor_lr}
"""Operators that make nothing, and for which torch has no shape rule: it would run the real kernel instead."""
_INTO_OUT = {getattr(torch.ops.aten.addmm, "dtype_out", None)} - {None}
"""Operators that make nothing and return what they write into, whose shape rule in torch 2.11 is another operator's."""
_READ = torch.ops.aten._local_scalar_dense.default
_DEVICE_OF = torch.ops.prim.device.default


def _zero(dtype: torch.dtype) -> float:
    """Return zero, or False, as a tensor of that type gives it."""
    return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0


def _given(args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """Return all arguments: an operator may write into one that it is given by name, and return it."""
    return (*args, *kwargs.values()) if kwargs else args


@cache
def _known_operators(device: str) -> tuple[OpNumbers, dict[Any, OpResult]]:  # noqa: ARG001 - it is known by that
    """Return what operators do and give, as all traces of this process for a kind of device have found so far."""
    return OpNumbers(), {}


class _Storage(weakref.ref):  # type: ignore[type-arg]
    """A storage that is alive, without keeping it so."""

    __slots__ = ("key", "slot")
    key: int
    slot: int


class StorageRecorder(FakeTensorMode):  # type: ignore[misc]  # mypy does not follow torch
    """A fake-tensor mode that records the storages behind the tensors that operators return.

    Being the mode itself, and not a second one on top of it, halves the cost of a traced operator. Only outermost
    operators are looked at: what a decomposition makes inside does not exist in the real kernel. `device` is the
    type of the device whose memory is meant; storages elsewhere are recorded as the host's. Storages that real
    kernels allocate inside and never return are added by `scratch`, by operator. What is recorded of memory is in
    `allocations`, what operators compute and move in `log`.
    """

    def __init__(self, device: str, scratch: Mapping[Any, Workspace]) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.allocations = Allocations()
        numbers, outcomes = _known_operators(device)
        self.log = OpCounter(device, numbers)
        self._device = device
        self._workspace_of = scratch
        self._known = KnownValues()
        self._cache = FakeOpCache(self, outcomes)
        self._inside = False
        self._to_disk = False
        self._muted = False
        self._zeros = False
        self._live: dict[int, _Storage] = {}
        self._newest: _Storage
        self._parameters: dict[int, tuple[int, int]] = {}  # by identity: number and module

    @property
    def avoid_device_init(self) -> bool:
        """Let `torch.tensor` make its constants on the CPU: nothing can run on a device that stands in."""
        return self._device != "cpu" or super().avoid_device_init

    # What is recorded.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE_OF and not self.in_kernel_invocation and len(args) == 1:
            return args[0].fake_device  # two of three calls; the general path costs as much as an operator
        if self._inside or self.in_kernel_invocation:
            return super().__torch_dispatch__(func, types, args, kwargs)
        value = self._known.scalar(func, args)
        if value is None and self._zeros and func is _READ:
            value = _zero(args[0].dtype)
        if value is not None:
            return value
        real = self._known.compute(func, args, kwargs or {})
        if real is not None:
            return self._faked(real, args)
        held = overwritten(args) if func in IN_PLACE and self.allocations.backward else None
        self._inside = True
        try:
            key = self._cache.key(func, args, kwargs)
            known = None if key is None else self._cache.find(key)
            if known is not None:
                result = self._cache.replay(known, _given(args, kwargs))
                self.log.running.append(known.work)
            else:
                if func is _GROUPED_MM and args[0].dtype != torch.bfloat16:
                    result = self._grouped_mm(types, args, kwargs)
                elif func in _ONLY_WRITES:
                    result = None
                elif func in _INTO_OUT:
                    result = (kwargs or {})["out"]
                else:
                    result = super().__torch_dispatch__(func, types, args, kwargs)
                    if result is NotImplemented:
                        return (
                            result  # tensors made of others, whose class calls operators on these by itself
                        )
                work = self.log.number(func, args, kwargs or {}, result)
                self.log.running.append(work)
                if key is not None:
                    self._cache.remember(key, _given(args, kwargs), result, work)
        finally:
            self._inside = False
        self._known.follow(func, args, kwargs or {}, result)
        if isinstance(result, Tensor):
            slot = self.see(result)
            if held is not None and slot is not None:
                self._may_be_in_place(func, held, slot)
        elif isinstance(result, tuple | list):
            for value in tree_leaves(result):
                if isinstance(value, Tensor):
                    self.see(value)
        if func in self._workspace_of:
            self.allocations.add_workspace(self._workspace_of[func](args))
        return result

    def _faked(self, real: Tensor, args: tuple[Any, ...]) -> Tensor:
        """Return the fake twin of a known result, on the device of the arguments."""
        device = next((value.fake_device for value in args if isinstance(value, FakeTensor)), real.device)
        empty = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
        fake = FakeTensor(self, empty, device)
        fake._known_values = real
        self.see(fake)
        return fake

    def _grouped_mm(self, types: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Tensor:
        """Multiply matrices of experts in fp32, which the kernels can, and torch's shape rule refuses."""

        def cast(value: Any, dtype: torch.dtype) -> Any:
            if not isinstance(value, FakeTensor) or not value.is_floating_point():
                return value
            empty = torch.empty_strided(value.shape, value.stride(), dtype=dtype, device="meta")
            return FakeTensor(self, empty, value.fake_device)

        lower = tuple(cast(value, torch.bfloat16) for value in args)
        result = super().__torch_dispatch__(_GROUPED_MM, types, lower, kwargs)
        return cast(result, args[0].dtype)

    def see(self, tensor: Tensor) -> int | None:
        """Record the tensor's storage if it is new, and return its slot; None for an empty one."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._live.get(key)
        if known is not None:
            return known.slot if known.slot >= 0 else None
        size = storage.nbytes()
        if not size or storage.filename is not None:
            return None
        # FakeTensor.device would be dispatched as an operator; its field is not.
        device = getattr(tensor, "fake_device", None) or tensor.device
        if device.type == "meta":
            return None
        place = DISK if self._to_disk else self._place(device)
        slot = _ELSEWHERE if self._muted else self.allocations.allocate(size, place)
        reference = _Storage(storage, self._forget)
        reference.key, reference.slot = key, slot
        self._live[key] = self._newest = reference
        return slot if slot >= 0 else None

    def _place(self, device: torch.device) -> int:
        return DEVICE if device.type == self._device else HOST

    def _forget(self, reference: _Storage) -> None:
        if self._live.get(reference.key) is reference:
            del self._live[reference.key]
            self._known.forget(reference.key)
        if reference.slot == _ELSEWHERE:
            return
        if self.allocations.release_or_fold(reference.slot):
            self._newest.slot = reference.slot

    def _may_be_in_place(self, func: Any, operand: Tensor, slot: int) -> None:
        """Remember that a result may be made in its operand's memory."""
        held = self._live.get(operand.untyped_storage()._cdata)
        if held is None:
            return
        just_made = held.slot == slot - 1 and self.allocations.newest_share_a_node
        if just_made or func not in ONTO_ZEROS:
            self.allocations.may_be_in_place(held.slot, slot)

    def slot_of(self, tensor: Tensor) -> int | None:
        """Return the slot of a tensor's storage; None where it was not recorded."""
        known = self._live.get(tensor.untyped_storage()._cdata)
        return None if known is None or known.slot < 0 else known.slot

    def stand_in(self, gradient: Tensor, slot: int, storages: dict[int, Tensor]) -> Tensor:
        """Return a gradient like another, whose release is recorded as that of `slot`.

        `storages` has those made so far, by slot: gradients may be views of one.
        """
        ours = local(gradient)
        with self.elsewhere(), torch.no_grad():
            if slot not in storages:
                count = ours.untyped_storage().nbytes() // ours.itemsize
                storages[slot] = torch.empty(count, dtype=ours.dtype, device=ours.device)
                self._live[storages[slot].untyped_storage()._cdata].slot = slot
            view = storages[slot].as_strided(ours.size(), ours.stride(), ours.storage_offset())
        return type(gradient)(view, gradient._spec, requires_grad=False) if ours is not gradient else view

    # What surrounds it.

    @contextmanager
    def segment(self) -> Iterator[StepEvents]:
        """Record what happens inside into a segment of its own."""
        self.log.begin()
        yield self.allocations.begin()
        self.allocations.begin()

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Record nothing of the storages that are made inside."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    @contextmanager
    def on_disk(self) -> Iterator[None]:
        """Record the storages that are made inside as the disk's: they stand for files."""
        self._to_disk = True
        try:
            yield
        finally:
            self._to_disk = False

    @contextmanager
    def reading_zeros(self) -> Iterator[None]:
        """Let values that are not known be read as zero: for questions to which that means no."""
        self._zeros = True
        try:
            yield
        finally:
            self._zeros = False

    def is_on_disk(self, tensor: Tensor) -> bool:
        """Tell whether a tensor's storage was made in `on_disk`."""
        known = self._live.get(tensor.untyped_storage()._cdata)
        return known is not None and known.slot >= 0 and self.allocations.place[known.slot] == DISK

    def mark(self, phase: Phase) -> None:
        """Say that a phase begins."""
        self.allocations.mark(phase)
        self.log.enter(phase)

    def label_activations(self) -> None:
        """Label as activations what was allocated since the phase's begin and is still alive."""
        since = self.allocations.entered
        category = self.allocations.category
        for reference in self._live.values():
            if reference.slot >= since and category[reference.slot] == TEMPORARY:
                category[reference.slot] = ACTIVATION

    def resized(self, tensor: Tensor, category: Category) -> None:
        """Record that a storage was given other memory, or none, which no operator does: FSDP does it."""
        storage = tensor.untyped_storage()
        known = self._live.get(storage._cdata)
        if known is None:
            self.label([tensor], category)
            return
        if known.slot >= 0:
            self.allocations.release(known.slot)
            known.slot = _ELSEWHERE
        if storage.nbytes():
            device = getattr(tensor, "fake_device", None) or tensor.device
            known.slot = self.allocations.allocate(storage.nbytes(), self._place(device))
            self.allocations.category[known.slot] = CATEGORIES.index(category)

    def label(self, tensors: Iterable[Tensor | None], category: Category) -> None:
        """Say what tensors hold that were recorded before; of distributed ones, what this rank holds."""
        wanted = CATEGORIES.index(category)
        for tensor in tensors:
            slot = None if tensor is None else self.see(local(tensor))
            if slot is not None:
                self.allocations.category[slot] = wanted

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Attribute allocations to the model's modules, and follow its gradients as they arrive."""
        owner = self.allocations.attribution.add(model)
        handles: list[Any] = []
        for number, parameter in enumerate(model.parameters()):
            slot = self.see(local(parameter))
            if slot is not None:
                self.allocations.module[slot] = owner[id(parameter)]
            if parameter.requires_grad:
                self._parameters[id(parameter)] = (number, owner[id(parameter)])
                handles.append(parameter.register_post_accumulate_grad_hook(self._gradient_arrived))
        try:
            with self.allocations.attribution.following():
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _gradient_arrived(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        slot = self.see(local(gradient))
        if slot is not None:
            self.allocations.gradient_arrived(slot, *self._parameters[id(parameter)])


# torch keeps its compiler out of every dispatch mode, at a cost for each call; nothing compiles while recording.
StorageRecorder.__torch_dispatch__ = getattr(  # type: ignore[method-assign]
    StorageRecorder.__torch_dispatch__, "__wrapped__", StorageRecorder.__torch_dispatch__
)
