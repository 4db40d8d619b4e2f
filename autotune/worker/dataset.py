"""What a user's function may return instead of a batch maker: a dataset, and what makes a batch of its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

Collate = Callable[[Sequence[Any]], Mapping[str, Tensor]]
"""Makes one batch (the forward's arguments, on the CPU) of samples."""


@runtime_checkable
class Samples(Protocol):
    """A map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...
