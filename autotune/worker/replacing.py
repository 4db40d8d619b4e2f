"""Put other values into the attributes of modules and classes, for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def replaced(changes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Give attributes, as (owner, name, value), other values; on leaving they are as before."""
    with ExitStack() as restoring:
        for owner, name, value in changes:
            restoring.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield
