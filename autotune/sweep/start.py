"""How nights begin, and go on where they were interrupted."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from autotune.devices.find import FindDevice
from autotune.errors import InputError
from autotune.results.store import Store
from autotune.sweep.asked import AskedSweep
from autotune.sweep.controller import Controller, NightCallbacks
from autotune.sweep.execution import Execution, LocalExecution
from autotune.sweep.file import SweepFile
from autotune.sweep.journal import NightJournal, NightRecord, read_night
from autotune.sweep.matrix import Cell, cells_of
from autotune.sweep.night import NightPaths, new_night
from autotune.sweep.stored import results_of


class Night(NamedTuple):
    """A night, and what it came to."""

    paths: NightPaths
    record: NightRecord


def begin_night(asked: AskedSweep, runs: Path, callbacks: NightCallbacks | None = None) -> Night:
    """Begin a night under `runs`, and run it as `run_night` does. Where the store cannot be used there is no night."""
    with results_of(asked.file, asked.base) as store:
        return _run(asked, new_night(asked.file.name, runs), store, callbacks, None)


def run_night(
    asked: AskedSweep,
    paths: NightPaths,
    callbacks: NightCallbacks | None = None,
    execution: Execution | None = None,
) -> Night:
    """Run what is left of a night; `paths` is its folder, which may be new.

    Probes run on this machine, unless another `execution` is given. Raises RunInUse where another controller works on
    it, and what `Controller.go` raises.
    """
    with results_of(asked.file, asked.base) as store:
        return _run(asked, paths, store, callbacks, execution)


def _run(
    asked: AskedSweep, paths: NightPaths, store: Store | None, callbacks: NightCallbacks | None,
    execution: Execution | None,
) -> Night:  # fmt: skip
    with ExitStack() as held:
        journal = held.enter_context(NightJournal(paths))
        if execution is None:
            places = sum(len(hardware.devices) for hardware in asked.file.hardware.values())
            execution = held.enter_context(LocalExecution(min(asked.file.cells_at_once, places)))
        return Night(paths, Controller(asked, paths, journal, execution, store, callbacks).go())


def asked_before(paths: NightPaths, find_device: FindDevice | None = None) -> AskedSweep:
    """Return what a night was asked for when it began. Raises InputError, JournalError."""
    asked = read_night(paths).asked
    if asked is None:
        raise InputError(
            f"{paths.root} was asked for nothing yet: begin another night with `autotune sweep run`"
        )
    return AskedSweep.again(asked) if find_device is None else AskedSweep.again(asked, find_device)


def cells_before(paths: NightPaths) -> tuple[Cell, ...]:
    """Return the cells of a night as it was asked for, whether or not they could be run now. Raises InputError."""
    asked = read_night(paths).asked
    return () if asked is None else cells_of(SweepFile.parse(asked.sweep, asked.source), asked.source)
