"""The folder of a night, which is one execution of a sweep: where each of its files is, and how it is found again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autotune.errors import InputError, nearest, unwritable
from autotune.printable import quoted
from autotune.run.paths import JOURNAL, RecordPaths, RunPaths
from autotune.user_files import user_path


@dataclass(frozen=True)
class NightPaths(RecordPaths):
    """The folder of one night: `runs/sweeps/<sweep>/<time>/`, so that names sort by age."""

    @property
    def sweep(self) -> str:
        """The name of the sweep."""
        return self.root.parent.name

    @property
    def cells(self) -> Path:
        """Parent of the cells' runs."""
        return self.root / "cells"

    def run(self, cell: str) -> RunPaths:
        """Return the run of a cell: `cells/<cell>/`."""
        return RunPaths(self.cells / cell)


def nights_of(sweep: str, runs: Path) -> tuple[NightPaths, ...]:
    """Return the nights of a sweep, the oldest first."""
    parent = user_path(runs, "--runs") / "sweeps" / sweep
    return tuple(NightPaths(journal.parent) for journal in sorted(parent.glob(f"*/{JOURNAL}")))


def new_night(sweep: str, runs: Path) -> NightPaths:
    """Make the folder of a new night, whose name is the time in UTC. Raises InputError where it cannot be made."""
    parent = user_path(runs, "--runs") / "sweeps" / sweep
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
            root = parent / (stem if number == 1 else f"{stem}-{number}")
            try:
                (root / "cells").mkdir(parents=True)
            except FileExistsError:
                continue
            return NightPaths(root)
    except OSError as error:
        raise unwritable(f"no folder for a night can be made in {parent}", error, "runs") from error
    raise AssertionError("a thousand nights in one second")


def find_night(name: str, runs: Path) -> NightPaths:
    """Return a night: by path, as `SWEEP/NIGHT`, the newest of a sweep by its name, or `last` for the newest of all.

    Raises InputError, naming the nearest.
    """
    path, parent = user_path(name, "the night"), user_path(runs, "--runs") / "sweeps"
    found = sorted(parent.glob(f"*/*/{JOURNAL}"), key=lambda journal: journal.parent.name)
    if name == "last" and found:
        return NightPaths(found[-1].parent)
    for root in (path, parent / name):
        if os.path.isfile(root / JOURNAL) and os.path.isdir(root / "cells"):
            return NightPaths(root.absolute() if root is path else root)
    of_sweep = [journal for journal in found if journal.parent.parent.name == name]
    if of_sweep:
        return NightPaths(of_sweep[-1].parent)
    known = sorted({journal.parent.parent.name for journal in found})
    hint = f"; {nearest(name, known)}" if known else f"; there are no sweeps in {parent}"
    raise InputError(f"there is no night of a sweep {quoted(name)}{hint}", about="night")
