"""Where a sweep keeps the results of all its nights."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from autotune.results.find import open_store
from autotune.results.store import Store
from autotune.sweep.file import SweepFile


def results_of(file: SweepFile, base: Path, create: bool = True) -> AbstractContextManager[Store | None]:
    """Return the store of a sweep's results; None where it names none. A relative path starts at `base`.

    Raises InputError (with `create` false also where it is not there yet), StoreError.
    """
    if file.results is None:
        return nullcontext()
    if "://" in file.results:
        return open_store(file.results, create)
    return open_store(base / Path(file.results).expanduser(), create)
