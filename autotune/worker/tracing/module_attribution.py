"""Which module of a model is at work: in forward the running one, in backward the one that made the node."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks


class Attribution:
    """Follows forward passes through the modules of watched models. A module is known by its index into `names`."""

    def __init__(self) -> None:
        self.names: list[str] = [""]
        """The first stands for no module."""
        self._numbers: dict[nn.Module, int] = {}
        self._path = [0]
        self._borders: list[int] = []  # autograd's sequence numbers at which the running module changed ...
        self._owners: list[int] = []  # ... and the module from there on

    @property
    def running(self) -> int:
        """The innermost module whose forward is running."""
        return self._path[-1]

    def made_by(self, node: Any) -> int:
        """Return the module whose forward made a node of the backward graph, since `forget`."""
        border = bisect_right(self._borders, node._sequence_nr()) - 1
        return self._owners[border] if border >= 0 else 0

    def forget(self) -> None:
        """Drop what is known of past forward passes."""
        self._borders.clear()
        self._owners.clear()

    def number(self, module: nn.Module) -> int:
        """Return the number of a module of a watched model; 0 for any other."""
        return self._numbers.get(module, 0)

    def add(self, model: nn.Module) -> dict[int, int]:
        """Name a model's modules, and return each parameter's module, by the parameter's identity."""
        for name, module in model.named_modules():
            self._numbers[module] = len(self.names)
            self.names.append(name or type(model).__name__)
        return {
            id(parameter): self._numbers[module]
            for module in model.modules()
            for parameter in module.parameters(recurse=False)
        }

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow forward passes while open."""
        handles: list[Any] = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:  # noqa: ARG002 - the hook's signature
        self._path.append(self._numbers.get(module, self.running))
        self._border()

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:  # noqa: ARG002 - likewise
        self._path.pop()
        self._border()

    def _border(self) -> None:
        self._borders.append(torch.autograd._get_sequence_nr())
        self._owners.append(self.running)
