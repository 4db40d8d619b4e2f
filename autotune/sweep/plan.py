"""What a night will take: its cells with the probes, device hours and cost that are expected of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

from autotune.objective import Price
from autotune.sweep.file import SweepFile
from autotune.sweep.matrix import Cell
from autotune.validation import Frozen

START = 20.0
"""Seconds that a probe is assumed to take beside its measured steps, where nothing is known: to start, to build the
model, to warm up. An assumption, and marked as such wherever it is shown."""

Basis = Literal["measured", "alike", "assumed"]
"""Where an expectation comes from: the cell's last night, other cells on its hardware, or nothing but the limits."""


class Took(Frozen):
    """What a cell took in an earlier night."""

    cell: str
    night: str
    probes: int
    seconds: float
    """Of its probes, rematches and proofs."""


class PlannedCell(Frozen):
    """A cell, and what it is expected to take."""

    cell: Cell
    devices: int
    """Ranks of each probe."""
    probes: int
    seconds: float
    """Of its probes, rematches and proof, one after the other."""
    basis: Basis
    night: str = ""
    """The night that it was measured in."""
    cached: int | None = None
    """Candidates of which the store has a probe that may stand for one; None where nothing is reused, or where that is
    known on a cluster's nodes alone."""
    cost: float | None = None
    """In the currency of its hardware's price; None without one."""

    @property
    def device_hours(self) -> float:
        """Hours of one device."""
        return self.seconds * self.devices / 3600


class HardwarePlan(Frozen):
    """What one hardware is expected to do."""

    name: str
    places: int
    """Probes at a time."""
    cells: int
    device_hours: float
    hours: float
    """Of wall time at the least: the work shared by its places, and no shorter than the longest cell."""
    cost: float | None = None
    currency: str = ""


class NightPlan(Frozen):
    """What a night is expected to take."""

    sweep: str
    cells: tuple[PlannedCell, ...]
    hardware: tuple[HardwarePlan, ...]

    @property
    def hours(self) -> float:
        """Hours of wall time, at the least: hardware works side by side."""
        return max((one.hours for one in self.hardware), default=0.0)

    @property
    def costs(self) -> dict[str, float]:
        """What it costs, by currency."""
        found: dict[str, float] = {}
        for one in self.hardware:
            if one.cost is not None:
                found[one.currency] = found.get(one.currency, 0.0) + one.cost
        return found


def plan(
    file: SweepFile, cells: Sequence[Cell], took: Mapping[str, Took], cached: Mapping[str, int] | None = None
) -> NightPlan:
    """Return what the cells are expected to take; `took` holds the last night of each that ever ended. Pure.

    `cached` says of how many candidates the store has a probe that may stand for one, by cell.

    A cell takes what it took before. One that never ran takes what the median of the cells on its hardware took that
    have its goal (else any), within its limits. Where nothing was measured there, it is assumed to use up its limits:
    as many probes as it may have, each with all of its `sample_time` and `START` beside it, but for those that are
    cached.
    """
    known = cached or {}
    by_id = {cell.id: cell for cell in cells}
    alike: dict[tuple[str, str | None], list[Took]] = {}
    for name, one in took.items():
        if (cell := by_id.get(name)) is not None:
            for goal in (cell.goal, None):
                alike.setdefault((cell.hardware, goal), []).append(one)
    planned = [_planned(file, cell, took.get(cell.id), alike, known.get(cell.id)) for cell in cells]
    return NightPlan(
        sweep=file.name,
        cells=tuple(planned),
        hardware=tuple(
            _of_hardware(file, name, [one for one in planned if one.cell.hardware == name])
            for name in file.hardware
            if any(one.cell.hardware == name for one in planned)
        ),
    )


def _planned(
    file: SweepFile,
    cell: Cell,
    before: Took | None,
    alike: Mapping[tuple[str, str | None], list[Took]],
    cached: int | None,
) -> PlannedCell:
    limits, goal, hardware = cell.limits, file.goals[cell.goal], file.hardware[cell.hardware]
    others = alike.get((cell.hardware, cell.goal)) or alike.get((cell.hardware, None)) or []
    basis: Basis
    if before is not None:
        basis, probes, seconds = "measured", before.probes, before.seconds
    elif others:
        basis = "alike"
        probes = min(limits.max_probes, round(median(one.probes for one in others)))
        seconds = median(one.seconds for one in others)
    else:
        basis, probes = "assumed", limits.max_probes
        each = min(limits.probe_timeout, START + limits.sample_time)
        spent = min((probes - min(probes, cached or 0)) * each, limits.time_budget or float("inf"))
        seconds = spent + START + limits.proof_time
    devices = goal.gpus * goal.nodes
    price = None if hardware.price_per_hour is None else Price.parse(hardware.price_per_hour)
    return PlannedCell(
        cell=cell, devices=devices, probes=probes, seconds=seconds, basis=basis,
        night=before.night if before is not None else "",
        cached=cached,
        cost=None if price is None else price.amount * seconds * devices / 3600,
    )  # fmt: skip


def _of_hardware(file: SweepFile, name: str, planned: Sequence[PlannedCell]) -> HardwarePlan:
    hardware = file.hardware[name]
    places = len(hardware.devices)
    listed = places > 1 and hardware.shared
    work = sum(one.seconds * (one.devices if listed else 1) for one in planned)
    costs = [one.cost for one in planned if one.cost is not None]
    return HardwarePlan(
        name=name, places=places, cells=len(planned),
        device_hours=sum(one.device_hours for one in planned),
        hours=max(work / places, *(one.seconds for one in planned)) / 3600,
        cost=sum(costs) if costs else None,
        currency="" if hardware.price_per_hour is None else Price.parse(hardware.price_per_hour).currency,
    )  # fmt: skip
