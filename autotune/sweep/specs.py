"""From the cells of a sweep to the specs of their runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from autotune.devices.find import FindDevice, check_device
from autotune.devices.host import total_memory
from autotune.errors import InputError, Problem
from autotune.options import RunOptions
from autotune.run.spec import to_spec
from autotune.specs import RunSpec
from autotune.sweep.file import SweepFile, SweepGoal
from autotune.sweep.matrix import Cell, cells_of
from autotune.sweep.places import windows
from autotune.units import format_bytes
from autotune.user_files import user_path
from autotune.validation import explain

_SHOWN = 2
"""Cells that a problem names."""


class Specs:
    """Makes the specs of a sweep's cells. What relative paths in the file mean starts at `base`, the file's folder."""

    def __init__(
        self,
        file: SweepFile,
        base: Path,
        source: str = "the sweep file",
        find_device: FindDevice = check_device,
        memory: Callable[[], int] = total_memory,
    ) -> None:
        self.file = file
        self._base = base
        self._source = source
        self._find_device = cache(find_device)
        self._memory = memory

    def cells(self) -> tuple[Cell, ...]:
        """Return the cells, each of which can be run. Raises InputError with every mistake of every cell."""
        cells = cells_of(self.file, self._source)
        if problems := self.problems(cells):
            raise InputError(problems)
        return cells

    def problems(self, cells: Sequence[Cell]) -> list[Problem]:
        """Return why some cells cannot be run, each reason once."""
        found: dict[Problem, list[str]] = {}
        for cell in cells:
            try:
                self.of(cell)
            except InputError as error:
                for problem in error.problems:
                    found.setdefault(problem, []).append(cell.id)
        problems = self._too_large(cells)
        for problem, wrong in found.items():
            of = "" if len(wrong) == len(cells) else f" ({_told(wrong)})"
            problems.append(Problem(f"{problem}{of}", problem.about))
        return problems

    def of(self, cell: Cell) -> RunSpec:
        """Return what the run of a cell is asked for. Raises InputError with every mistake in it."""
        hardware = self.file.hardware[cell.hardware]
        try:
            options = cell.options(self.file, self._absolute_device(hardware.device[0]))
        except ValidationError as error:
            raise InputError(self._placed(explain(error, RunOptions, ""), cell)) from None
        options = options.model_copy(update={"space": self._absolute(options.space)})
        problems: list[Problem] = []
        found = None
        try:
            found = to_spec(options, self._find_device, self._base)
        except InputError as error:
            problems += self._placed(error.problems, cell)
        for device in hardware.devices[1:]:
            try:
                self._find_device(device, options.gpus * options.nodes)
            except InputError as error:
                problems += self._placed([Problem(problem, "device") for problem in error.problems], cell)
        if not windows(hardware.devices, options.gpus, hardware.shared):
            reason = f"{options.gpus} ranks need as many GPUs in a row, and hardware.{cell.hardware} lists none such"
            problems += self._placed([Problem(reason, "gpus")], cell)
        if problems or found is None:
            raise InputError(problems)
        return found

    def _too_large(self, cells: Sequence[Cell]) -> list[Problem]:
        """Return which hardware promises more of this machine's memory than there is."""
        problems = []
        for name, hardware in self.file.hardware.items():
            budget = hardware.devices[0].budget
            goals = {cell.goal for cell in cells if cell.hardware == name}
            ranks = max(
                (self.file.goals[goal].gpus * self.file.goals[goal].nodes for goal in goals), default=0
            )
            together = len(hardware.devices) * ranks * (budget or 0)
            here = hardware.devices[0].kind == "cpu" and hardware.cluster is None
            if here and together > self._memory():
                problems.append(
                    Problem(
                        f"{self._source}: hardware.{name}.at_once: {len(hardware.devices)} probes of {ranks} ranks "
                        f"with {format_bytes(budget or 0)} each take {format_bytes(together)}, and this machine has "
                        f"{format_bytes(self._memory())}",
                        f"hardware.{name}.at_once",
                    )
                )
        return problems

    def _placed(self, problems: Sequence[str], cell: Cell) -> list[Problem]:
        """Return problems of a cell's options with the keys of the file that they are about."""
        placed = []
        for problem in problems:
            about = getattr(problem, "about", "")
            option = about.split(".")[0]
            match option:
                case "model":
                    where = "matrix.model"
                case "space":
                    where = "matrix.space"
                case "device" | "price_per_hour" | "cluster" | "partition":
                    where = f"hardware.{cell.hardware}.{option}"
                case _ if option in SweepGoal.ELSEWHERE:
                    where = f"limits.{option}"
                case _:
                    where = f"goals.{cell.goal}{'.' * bool(about)}{about}"
            said = str(problem).removeprefix(": ").removeprefix(f"{about}: ")
            placed.append(Problem(f"{self._source}: {where}: {said}", where))
        return placed

    def _absolute(self, path: str | None) -> str | None:
        """Return a file beside the sweep file by its whole path; anything else as it is."""
        if path is None or not os.path.exists(found := self._base / user_path(path, "matrix.space")):
            return path
        return str(found) if os.path.isfile(found) else path

    def _absolute_device(self, device: str) -> str:
        kind, _, file = device.partition(":")
        return f"replay:{self._base / user_path(file, 'device')}" if kind == "replay" and file else device


def _told(cells: Sequence[str]) -> str:
    more = len(cells) - _SHOWN
    return f"cell{'s' * (len(cells) > 1)} {', '.join(cells[:_SHOWN])}{f' and {more:,} more' * (more > 0)}"
