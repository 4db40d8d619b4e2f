"""autotune: the fastest training configuration that is proven not to run out of memory."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.api import Run, load_run, tune
    from autotune.best import Best
    from autotune.candidate import Candidate
    from autotune.outcome import Outcome

__version__ = "0.1.0"
__all__ = ["Best", "Candidate", "Outcome", "Run", "load_run", "tune"]

_HOMES = {
    "Best": "autotune.best",
    "Candidate": "autotune.candidate",
    "Outcome": "autotune.outcome",
    "Run": "autotune.api",
    "load_run": "autotune.api",
    "tune": "autotune.api",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `autotune --help` loads nothing."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'autotune' has no attribute {name!r}")
