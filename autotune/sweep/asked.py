"""A sweep as it is asked for: its file, whose cells can all be run, and what a night of it is expected to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.devices.find import FindDevice, check_device
from autotune.devices.host import total_memory
from autotune.errors import InputError, Problem
from autotune.sweep.cached import cached_trials
from autotune.sweep.events import NightAsked
from autotune.sweep.file import SweepFile, read_keys
from autotune.sweep.journal import what_cells_took
from autotune.sweep.matrix import Cell, cells_of
from autotune.sweep.night import nights_of
from autotune.sweep.plan import NightPlan, plan
from autotune.sweep.specs import Specs
from autotune.user_files import user_path


@dataclass(frozen=True)
class AskedSweep:
    """A sweep file with its cells."""

    file: SweepFile
    data: dict[str, Any]
    """The keys of the file, as they were written."""
    source: str
    base: Path
    specs: Specs
    cells: tuple[Cell, ...]

    @classmethod
    def read(
        cls, file: Path, find_device: FindDevice = check_device, memory: Callable[[], int] = total_memory
    ) -> AskedSweep:
        """Read a sweep file, and see that each of its cells can be run. Raises InputError with every mistake.

        `memory` says how many bytes this machine has.
        """
        path = user_path(file, "the sweep file")
        source, base = str(path), path.absolute().parent
        data = read_keys(path)
        try:
            return cls._of(SweepFile.parse(data, source), data, source, base, find_device, memory)
        except InputError as error:
            raise InputError(
                [*error.problems, *_more_problems(error, data, source, base, find_device, memory)]
            ) from None

    @classmethod
    def again(cls, asked: NightAsked, find_device: FindDevice = check_device) -> AskedSweep:
        """Return what a night was asked for when it began. Raises InputError where it cannot be run any more."""
        found = SweepFile.parse(asked.sweep, asked.source)
        return cls._of(found, asked.sweep, asked.source, Path(asked.base), find_device)

    @classmethod
    def _of(
        cls, file: SweepFile, data: dict[str, Any], source: str, base: Path, find_device: FindDevice,
        memory: Callable[[], int] = total_memory,
    ) -> AskedSweep:  # fmt: skip
        specs = Specs(file, base, source, find_device, memory)
        return cls(file, data, source, base, specs, specs.cells())

    @cached_property
    def by_id(self) -> dict[str, Cell]:
        """The cells by their ids."""
        return {cell.id: cell for cell in self.cells}

    @property
    def line(self) -> NightAsked:
        """The first line of a night's journal."""
        ids = tuple(cell.id for cell in self.cells)
        return NightAsked.of(self.data, self.source, str(self.base), ids)

    def plan(self, runs: Path) -> NightPlan:
        """Return what a night is expected to take, by what the nights under `runs` took and what is in the store.

        Raises StoreError.
        """
        cached = cached_trials(self.file, self.base, self.cells, self.specs.of)
        return plan(self.file, self.cells, what_cells_took(nights_of(self.file.name, runs)), cached)


def _more_problems(
    error: InputError,
    data: dict[str, Any],
    source: str,
    base: Path,
    find_device: FindDevice,
    memory: Callable[[], int],
) -> list[Problem]:
    """Return the mistakes of cells in a file whose keys have some, as far as its cells can be told."""
    rest = SweepFile.rest(data)
    if rest is None:
        return []
    known = {*error.problems}
    try:
        cells = [
            cell
            for cell in cells_of(rest, source)
            if cell.hardware in rest.hardware and cell.goal in rest.goals
        ]
    except InputError:  # what is left out would have made it a cell
        return []
    return [
        problem
        for problem in Specs(rest, base, source, find_device, memory).problems(cells)
        if problem not in known
    ]
