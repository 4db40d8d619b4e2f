"""The cells of a sweep: every combination of the matrix, without what is excluded, with what is included. Pure."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import PurePosixPath
from typing import Any

from autotune.errors import InputError, Problem
from autotune.options import Limits, RunOptions
from autotune.sweep.file import AXES, MOST_CELLS, Axis, Excluded, Included, SweepFile
from autotune.units import format_count
from autotune.validation import Frozen

_Values = dict[Axis, str]


class Cell(Frozen):
    """One combination of a sweep's matrix: a run of its own."""

    id: str
    """Readable, unique in the sweep, and the same each night; the name of its run's folder."""
    model: str
    hardware: str
    goal: str
    space: str | None = None
    """None takes the space that a run takes by itself."""
    priority: int = 0
    limits: Limits = Limits()

    def options(self, file: SweepFile, device: str) -> RunOptions:
        """Return the options of its run, on one of the devices of its hardware. Raises ValidationError."""
        given: dict[str, Any] = {**file.goals[self.goal].options, **file.hardware[self.hardware].options}
        given |= {"model": self.model, "device": device}
        given |= {} if self.space is None else {"space": self.space}
        return RunOptions.model_validate({**given, **self.limits.model_dump()})


def cells_of(file: SweepFile, source: str = "the sweep file") -> tuple[Cell, ...]:
    """Return the cells, those of a higher priority first, else in the order of the file.

    Excludes come before includes. An include gives its limits and priority to every cell that has its values, a later
    one over an earlier; one that no cell has adds a cell. Raises InputError with every mistake.
    """
    listed = {axis: getattr(file.matrix, axis) or () for axis in AXES}
    count = (
        len(listed["model"]) * len(listed["hardware"]) * len(listed["goal"]) * max(1, len(listed["space"]))
    )
    if count > MOST_CELLS:
        raise InputError(
            f"{source}: matrix: {format_count(count)} cells are more than {format_count(MOST_CELLS)}",
            "matrix",
        )
    axes = [axis for axis in AXES if listed[axis]]
    combined: list[_Values] = [
        dict(zip(axes, values, strict=True)) for values in product(*(listed[axis] for axis in axes))
    ]
    problems: list[str] = []
    combined = [values for values in combined if not any(_has(values, one) for one in file.exclude)]
    own: list[dict[str, Any]] = [{} for _ in combined]
    for place, include in enumerate(file.include):
        given = {**include.limits, **({} if include.priority is None else {"priority": include.priority})}
        meant = [number for number, values in enumerate(combined) if _has(values, include)]
        for number in meant:
            own[number] |= given
        if not meant:
            missing = [axis for axis in AXES[:3] if axis not in include.axes]
            if missing:
                problems.append(
                    Problem(
                        f"{source}: include.{place}: no cell is so, and to add one {', '.join(missing)} is missing",
                        f"include.{place}",
                    )
                )
                continue
            combined.append(include.axes)
            own.append(given)
    if not combined and not problems:
        problems.append(Problem(f"{source}: no cell is left: everything is excluded", "exclude"))
    if problems:
        raise InputError(problems)
    base = {name: getattr(file.limits, name) for name in Limits.model_fields}
    cells = []
    for name, values, given in zip(_names(combined), combined, own, strict=True):
        priority = given.pop("priority", 0)
        limits = Limits.model_validate({**base, **given}) if given else file.limits
        cells.append(Cell(id=name, **values, priority=priority, limits=limits))
    return tuple(sorted(cells, key=lambda cell: -cell.priority))


def _has(values: Mapping[Axis, str], wanted: Included | Excluded) -> bool:
    return all(values.get(axis) == value for axis, value in wanted.axes.items())


def _names(combined: list[_Values]) -> list[str]:
    """Return a name for each cell; those that would have the same get a digest of what they are."""
    names = ["-".join(_slug(values[axis]) for axis in AXES if axis in values) for values in combined]
    often = Counter(name.lower() for name in names)  # some file systems take no notice of case
    return [
        name if often[name.lower()] == 1 else f"{name}-{_digest(values)}"
        for name, values in zip(names, combined, strict=True)
    ]


def _slug(value: str) -> str:
    """Return what is worth reading of a model's, a space's or another name."""
    path = PurePosixPath(value)
    if path.name == "config.json" and len(path.parts) > 1:
        path = path.parent
    stem = path.name.removesuffix(".json").removesuffix(".yaml")
    return re.sub(r"[^A-Za-z0-9.]+", "-", stem).strip("-.")[:40] or "x"


def _digest(values: Mapping[Axis, str]) -> str:
    return hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()[:6]
