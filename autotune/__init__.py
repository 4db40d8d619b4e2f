"""autotune: the fastest training configuration that is proven not to run out of memory."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.api import Run, estimate, load_results, load_run, tune
    from autotune.candidate import Candidate
    from autotune.errors import (
        AutotuneError,
        DiskError,
        InputError,
        JournalError,
        ModelError,
        NoDiskSpace,
        NothingFits,
        NothingProven,
        NothingTrained,
        NotPriced,
        ProbeError,
        StoreError,
    )
    from autotune.outcome import Outcome
    from autotune.run.best import Best
    from autotune.run.callbacks import RunCallbacks
    from autotune.watch.watcher import report_step

__version__ = "0.1.0"
__all__ = [
    "AutotuneError", "Best", "Candidate", "DiskError", "InputError", "JournalError", "ModelError", "NoDiskSpace",
    "NotPriced", "NothingFits", "NothingProven", "NothingTrained", "Outcome", "ProbeError", "Run", "RunCallbacks",
    "RunEdited", "RunInUse", "StoreError", "estimate", "load_results", "load_run",
    "report_step", "tune",
]  # fmt: skip

_HOMES = {
    "Best": "autotune.run.best",
    "Candidate": "autotune.candidate",
    "Outcome": "autotune.outcome",
    "Run": "autotune.api",
    "RunCallbacks": "autotune.run.callbacks",
    "estimate": "autotune.api",
    "load_results": "autotune.api",
    "load_run": "autotune.api",
    "report_step": "autotune.watch.watcher",
    "tune": "autotune.api",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `autotune --help` loads nothing."""
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "autotune.errors")), name)
    raise AttributeError(f"module 'autotune' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return what there is to use, for completion at a prompt."""
    return [*__all__, "__version__"]
