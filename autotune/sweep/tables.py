"""What is shown of a sweep on a terminal: its plan, its progress, and what came of its cells."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.objective import Price
from autotune.reporting.columns import Column, FittingTable
from autotune.sweep.plan import Plan, PlannedCell
from autotune.units import format_counted, format_duration

SHOWN = 40
"""Cells of a plan that a terminal shows; --json has all."""


def plan_view(plan: Plan) -> RenderableType:
    """Return the cells, what each is expected to take and how that is known, and the sum by hardware."""
    shown = plan.cells[:SHOWN]
    parts: list[RenderableType] = [
        FittingTable(
            [
                Column("cell", [one.cell.id for one in shown]),
                Column("model", [one.cell.model for one in shown], leaves=3),
                Column("hardware", [one.cell.hardware for one in shown], leaves=4),
                Column("priority", [str(one.cell.priority) for one in shown], leaves=5, justify="right"),
                Column("probes", [_probes(one) for one in shown], justify="right"),
                Column("device\nhours", [f"{one.device_hours:.2f}" for one in shown], justify="right"),
                Column("cost", [_cost(one.cost, "") for one in shown], leaves=2, justify="right"),
                Column("known from", [_basis(one) for one in shown], leaves=1, style="dim"),
            ]
        )
    ]
    if (more := len(plan.cells) - SHOWN) > 0:
        parts.append(Text(f"and {format_counted(more, 'more cell')}; --json lists all", style="dim"))
    parts.append(
        FittingTable(
            [
                Column("hardware", [one.name for one in plan.hardware]),
                Column("at once", [str(one.places) for one in plan.hardware], justify="right"),
                Column("cells", [f"{one.cells:,}" for one in plan.hardware], justify="right"),
                Column(
                    "device\nhours", [f"{one.device_hours:,.2f}" for one in plan.hardware], justify="right"
                ),
                Column(
                    "at least", [format_duration(3600 * one.hours) for one in plan.hardware], justify="right"
                ),
                Column("cost", [_cost(one.cost, one.currency) for one in plan.hardware], justify="right"),
            ]
        )
    )
    hours = sum(one.device_hours for one in plan.hardware)
    costs = "".join(f", {_cost(cost, currency)}" for currency, cost in plan.costs.items())
    parts.append(
        Text(
            f"{format_counted(len(plan.cells), 'cell')}: {hours:,.2f} device hours{costs}, "
            f"{format_duration(3600 * plan.hours)} at the least"
        )
    )
    if assumed := sum(one.basis == "assumed" for one in plan.cells):
        parts.append(
            Text(
                f"Of {format_counted(assumed, 'cell')} nothing was measured yet. They are assumed to use up their "
                "limits, which most runs do not.",
                style="yellow",
            )
        )
    return Group(*_apart(parts))


def _apart(parts: Iterable[RenderableType]) -> list[RenderableType]:
    return [piece for part in parts for piece in (part, Text(""))][:-1]


def _probes(one: PlannedCell) -> str:
    return f"{'<= ' if one.basis == 'assumed' else ''}{one.probes:,}"


def _basis(one: PlannedCell) -> str:
    return {"measured": f"night {one.night}", "alike": "cells like it", "assumed": "assumed"}[one.basis]


def _cost(cost: float | None, currency: str) -> str:
    return "-" if cost is None else Price(amount=max(cost, 1e-9), currency=currency).of(cost)
