"""Values of tensors under fake tensors, where they depend on constants alone: positions, masks, token ids.

Models look into such tensors ("is any token padding?") and take another path when they cannot. So small tensors that
come from constants are computed for real beside their fake twins. Parameters and what is computed from them are not
known. A number that is drawn to decide about a layer counts as the largest that can be drawn, which keeps the layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from autotune.worker.measuring.layer_drop import decides, largest_draw

LIMIT = 1 << 22
"""Elements of a tensor, at most: larger ones (full attention masks of long sequences) are not worth their memory."""

_SCALAR = torch.ops.aten._local_scalar_dense.default
_UNIFORM = {torch.ops.aten.rand.default, torch.ops.aten.rand.generator}


class KnownValues:
    """Computes and remembers values, as far as they are known."""

    def __init__(self) -> None:
        self._spoilt: set[int] = set()  # storages that an unknown value was written into
        self._no_values: dict[Any, bool] = {}

    def scalar(self, func: Any, args: tuple[Any, ...]) -> Any:
        """Return what `tensor.item()` would, or None where this is not that call or its value is unknown."""
        if func is not _SCALAR:
            return None
        value = self._of(args[0])
        return None if value is None else value.item()

    def compute(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
        """Return the real result of an operator whose output's shape depends on values, if these are known."""
        if torch.Tag.dynamic_output_shape not in func.tags:
            return None
        known = self._known_arguments(args, kwargs)
        if known is None:
            return None
        result = func(*known[0], **known[1])
        return result if isinstance(result, Tensor) else None

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Give the result its values, if it is small and all that went in is known."""
        for argument in args:
            if type(argument) is FakeTensor and getattr(argument, "_known_values", None) is None:
                return self._spoil(func, args, result)
        if result is None and func._schema.is_mutable:
            return self._write(func, args, kwargs)
        results = [result] if isinstance(result, Tensor) else result
        if not isinstance(results, tuple | list) or not results:
            return self._spoil(func, args, result)
        if not all(isinstance(value, Tensor) and value.numel() <= LIMIT for value in results):
            return self._spoil(func, args, result)
        if func in _UNIFORM and decides(results[0]):
            results[0]._known_values = largest_draw(results[0])
            return None
        known = None if self._draws(func) else self._known_arguments(args, kwargs)
        if known is None:
            return self._spoil(func, args, result)
        try:
            real = func(*known[0], **known[1])
        except (RuntimeError, NotImplementedError):  # the CPU lacks some kernels that other devices have
            return self._spoil(func, args, result)
        for fake, value in zip(results, [real] if isinstance(real, Tensor) else real, strict=True):
            fake._known_values = value
        return None

    def _write(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Do to known values what an operator does in place to a list of tensors: step counters of `foreach`."""
        known = None if self._draws(func) else self._known_arguments(args, kwargs)
        if known is None:
            return self._spoil(func, args, None)
        try:
            func(*known[0], **known[1])
        except (RuntimeError, NotImplementedError):
            self._spoil(func, args, None)
        return None

    def forget(self, storage: int) -> None:
        """Say that a storage is gone, and its number free for another."""
        self._spoilt.discard(storage)

    def _draws(self, func: Any) -> bool:
        """Tell whether an operator's result has no definite values: random, or memory as it is."""
        known = self._no_values.get(func)
        if known is None:
            name = func._schema.name
            known = (
                torch.Tag.nondeterministic_seeded in func.tags or "empty" in name or func.namespace != "aten"
            )
            self._no_values[func] = known
        return known

    def _known_arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return the arguments with real tensors, on the CPU; None where one is not known."""
        flat, structure = tree_flatten((args, dict(kwargs)))
        values: list[Any] = []
        for argument in flat:
            value = self._of(argument) if isinstance(argument, Tensor) else argument
            if value is None and argument is not None:
                return None
            values.append(torch.device("cpu") if isinstance(value, torch.device) else value)
        known: tuple[tuple[Any, ...], dict[str, Any]] = tree_unflatten(values, structure)
        return known

    def _of(self, tensor: Tensor) -> Tensor | None:
        if not isinstance(tensor, FakeTensor):
            return tensor  # a constant that was never made fake
        if tensor.untyped_storage()._cdata in self._spoilt:
            return None
        value: Tensor | None = getattr(tensor, "_known_values", None)
        return value

    def _spoil(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """Forget the values behind what was written into, through whichever view."""
        if not func._schema.is_mutable:
            return
        written: Iterable[Any] = args if result is None else (result, *args[:1])
        for value in tree_leaves(written):
            if getattr(value, "_known_values", None) is not None:
                self._spoilt.add(value.untyped_storage()._cdata)
