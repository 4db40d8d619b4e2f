"""The search spaces that ship with autotune, and a user's own, by name."""

from __future__ import annotations

from autotune import assets
from autotune.search.space import Space


def shipped_spaces() -> tuple[str, ...]:
    """Return the names of the search spaces that ship with autotune."""
    return tuple(name for name in assets.shipped_names() if name != "hardware")


def load_space(name: str) -> Space:
    """Return a search space: the user's own file where `name` is a path to one, else a shipped one."""
    return Space.parse(assets.find_text(name), name)


def default_space(gpus: int, with_lengths: bool = False) -> str:
    """Return the name of the space for so many devices, and for data of which the lengths are known.

    Several devices can share the work in several ways; sequences of unequal lengths can be padded or packed.
    """
    if gpus > 1:
        return "multi_gpu"
    return "packing" if with_lengths else "default"
