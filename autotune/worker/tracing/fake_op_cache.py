"""What operators return, remembered: the same operator on tensors alike returns tensors alike.

A transformer repeats its block, so nearly all operators of a traced step were seen before. torch's own cache of fake
tensors knows them too, but covers compilation's needs, and takes several times as long for a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_PLAIN = {"aten", "prims", "prim", "fsdp"}
"""Namespaces of operators that do nothing but what their schema says; others may be a user's own."""


class _New(NamedTuple):
    """A tensor with storage of its own."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class _View(NamedTuple):
    """A tensor in the storage of an argument."""

    argument: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int


class _Argument(NamedTuple):
    """An argument itself, written into."""

    argument: int


class _Constant(NamedTuple):
    """A number, or None."""

    value: object


_Output = _New | _View | _Argument | _Constant


class OpResult(NamedTuple):
    """What a remembered call returns."""

    container: type | None
    """`tuple` or `list`; None where a single value is returned."""
    outputs: tuple[_Output, ...]
    work: int
    """The number of what it does, in the recorder's work log."""


class _NotHashable(Exception):
    """The call cannot be remembered."""


class FakeOpCache:
    """Outcomes by operator and arguments, for one fake-tensor mode."""

    def __init__(self, mode: FakeTensorMode, outcomes: dict[Any, OpResult]) -> None:
        """Take what is known already, to which is added: it holds for all modes whose operators are numbered alike."""
        self._mode = mode
        self._outcomes = outcomes
        self._changing: dict[Any, bool] = {}
        self._attributes: dict[torch.device, dict[str, Any]] = {}
        """Those of a fake tensor, by its device: all have the same."""

    def key(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Any:
        """Return what determines the outcome's shapes; None where a call cannot be remembered."""
        changing = self._changing.get(func)
        if changing is None:
            tags = func.tags
            changing = self._changing[func] = (
                torch.Tag.inplace_view in tags
                or torch.Tag.data_dependent_output in tags
                or torch.Tag.dynamic_output_shape in tags
                or func.namespace not in _PLAIN
            )
        if changing:
            return None
        # The type of what is made without one, and of fp32 products.
        settings = torch.get_default_dtype(), torch.get_float32_matmul_precision()
        try:
            described = tuple(map(_described, args))
            if kwargs:
                named = tuple((name, _described(value)) for name, value in kwargs.items())
                return func, settings, described, named
        except _NotHashable:
            return None
        return func, settings, described

    def find(self, key: Any) -> OpResult | None:
        """Return the outcome of a remembered call."""
        return self._outcomes.get(key)

    def replay(self, outcome: OpResult, args: tuple[Any, ...]) -> Any:
        """Return what the call did before, as new tensors."""
        if outcome.container is None:
            return self._made(outcome.outputs[0], args)
        return outcome.container(self._made(output, args) for output in outcome.outputs)

    def remember(self, key: Any, args: tuple[Any, ...], result: Any, work: int) -> None:
        """Keep the outcome of a call, if its outputs are of a kind that can be made again."""
        container = type(result) if isinstance(result, tuple | list) else None
        if container is not None and container not in (tuple, list):
            return
        outputs = [_output(value, args) for value in (result if container else (result,))]
        if all(output is not None for output in outputs):
            self._outcomes[key] = OpResult(
                container, tuple(output for output in outputs if output is not None), work
            )

    def _made(self, output: _Output, args: tuple[Any, ...]) -> Any:
        if type(output) is _New:
            empty = torch.empty_strided(output.shape, output.stride, dtype=output.dtype, device="meta")
            return self._fake(empty, output.device)
        if type(output) is _View:
            empty = torch.empty((0,), dtype=output.dtype, device="meta")
            empty.set_(args[output.argument].untyped_storage(), output.offset, output.shape, output.stride)
            return self._fake(empty, output.device)
        if type(output) is _Argument:
            return args[output.argument]
        return output.value  # type: ignore[union-attr]  # a _Constant is left

    def _fake(self, empty: Tensor, device: torch.device) -> FakeTensor:
        """Return a fake tensor as its constructor makes it, whose checks and defaults take several times as long."""
        attributes = self._attributes.get(device)
        if attributes is None:
            constructed = FakeTensor(self._mode, empty, device)
            self._attributes[device] = dict(vars(constructed))
            return constructed
        fake: FakeTensor = Tensor._make_subclass(
            FakeTensor, empty, dispatch_device=True, device_for_backend_keys=device
        )
        vars(fake).update(attributes)
        return fake


def _described(value: Any) -> Any:
    kind = type(value)
    if kind is FakeTensor:
        if value.layout is not torch.strided or value.dtype.is_complex:
            raise _NotHashable
        return value.dtype, value.shape, value.stride(), value.storage_offset(), value.fake_device
    if kind is tuple or kind is list:
        return kind, tuple(map(_described, value))
    if isinstance(value, Tensor | torch.SymInt | torch.SymFloat | torch.SymBool | torch.Generator):
        raise _NotHashable
    return kind, value  # 1, 1.0 and True are equal, and not the same argument


def _output(value: Any, args: tuple[Any, ...]) -> _Output | None:
    if value is None or type(value) in (int, float, bool):
        return _Constant(value)
    if type(value) is not FakeTensor or value.layout is not torch.strided or value.dtype.is_complex:
        return None
    storage = value.untyped_storage()
    shape, stride, offset = tuple(value.shape), value.stride(), value.storage_offset()
    for position, argument in enumerate(args):
        if argument is value:
            return _Argument(position)
        if type(argument) is FakeTensor and argument.untyped_storage()._cdata == storage._cdata:
            return _View(position, shape, stride, value.dtype, value.fake_device, offset)
    reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    needed = reach * value.element_size() if value.numel() else 0
    if offset or storage.nbytes() != needed:
        return None
    return _New(shape, stride, value.dtype, value.fake_device)
