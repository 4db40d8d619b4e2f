"""The threads that numpy's OpenBLAS starts while it is loaded, and ends before this process forks."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
from pathlib import Path
from typing import Any


def loaded() -> list[Path]:
    """Return the files of all OpenBLAS libraries in this process."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "openblas" in line}
    return sorted(Path(path) for path in paths if ".so" in path)


def threads(path: Path) -> int:
    """Return with how many threads a library computes. Raises LookupError where it does not say."""
    return int(_function(path, "openblas_get_num_threads")())


def restart() -> None:
    """Start the threads again that the fork ended: a worker that was started cold has them, with their stacks.

    Raises LookupError for a library that does not say how.
    """
    for path in loaded():
        _function(path, "openblas_set_num_threads")(threads(path))


def _function(path: Path, name: str) -> Any:
    library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    for prefix, suffix in itertools.product(("", "scipy_"), ("", "64_", "_64_")):
        with contextlib.suppress(AttributeError):
            return library[f"{prefix}{name}{suffix}"]
    raise LookupError(f"{path.name} has no {name}")
