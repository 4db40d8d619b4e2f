"""What is shown of a sweep on a terminal: its plan, its progress, and what came of its cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.commands import command
from autotune.objective import Price
from autotune.reporting.columns import Column, FittingTable
from autotune.results.changes import NightChange
from autotune.results.row import CellState
from autotune.sweep.events import CellEnded
from autotune.sweep.plan import NightPlan, PlannedCell
from autotune.sweep.progress import CellResult, NightProgress
from autotune.units import format_bytes, format_count, format_counted, format_duration

SHOWN = 40
"""Cells of a plan that a terminal shows; --json has all."""

STATES: dict[CellState, tuple[str, str]] = {
    "proven": ("proven", "green"),
    "nothing_fits": ("nothing fits", "yellow"),
    "nothing_trained": ("nothing trained", "yellow"),
    "nothing_proven": ("nothing proven", "yellow"),
    "model_error": ("the model fails", "red"),
    "bad_input": ("refused", "red"),
    "failed": ("failed", "red"),
    "interrupted": ("interrupted", "magenta"),
}
"""How each state is called, and its colour."""


def plan_view(plan: NightPlan) -> RenderableType:
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
                Column("cached", [_cached(one) for one in shown], justify="right"),
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


def progress_text(progress: NightProgress) -> str:
    """Return in a sentence or two how far a night is: who works on it, and how cells ended."""
    if progress.controller is not None:
        said = f"process {progress.controller} works on it"
    elif progress.closed:
        said = "it is over"
    else:
        why = (
            f"interrupted by {progress.interrupted}" if progress.interrupted else "its controller was killed"
        )
        said = f"nobody works on it: {why}; go on with: {command('sweep', 'resume', Path(progress.folder))}"
    counts = [f"{format_count(count)} {STATES[state][0]}" for state, count in progress.states.items()]
    return (
        f"night {progress.night} of {progress.sweep}: {said}\n{progress.ended:,} of "
        f"{format_counted(progress.cells, 'cell')} ended{' (' * bool(counts)}{', '.join(counts)}{')' * bool(counts)}, "
        f"{len(progress.under_way):,} under way, {progress.pending:,} to come; "
        f"{format_counted(progress.probes, 'probe')}, {format_duration(progress.seconds)} of those that ended"
    )


def progress_view(progress: NightProgress) -> RenderableType:
    """Return how far a night is, and what is under way."""
    parts: list[RenderableType] = [Text(progress_text(progress))]
    if shown := progress.under_way[:SHOWN]:
        parts.append(
            FittingTable(
                [
                    Column("under way", [one.cell for one in shown]),
                    Column("since", [one.since for one in shown], leaves=2, style="dim"),
                    Column("probes", [f"{one.probes:,}" for one in shown], justify="right"),
                    Column("last", [one.doing for one in shown], leaves=1),
                ]
            )
        )
    return Group(*_apart(parts))


def results_table(results: Sequence[CellResult]) -> FittingTable:
    """Return what came of the cells of a night, one a row."""
    return FittingTable(
        [
            Column("cell", [one.cell for one in results]),
            Column("state", [_state(one.ended) for one in results]),
            Column("winner", [_winner(one.ended) for one in results], leaves=1, least=20),
            Column("tokens/s", [speed_of(one.ended) for one in results], justify="right"),
            Column(
                "since the\nnight before", [_change(one.change) for one in results], leaves=2, justify="right"
            ),
            Column("peak", [_peak(one.ended) for one in results], leaves=3, justify="right"),
            Column("probes", [_count(one.ended) for one in results], leaves=4, justify="right"),
        ]
    )


def results_view(results: Sequence[CellResult]) -> RenderableType:
    """Return what came of the cells of a night, and why of those without a winner."""
    why = [
        Text(f"{one.cell}: {one.ended.why}", style=STATES[one.ended.state][1])
        for one in results
        if one.ended is not None and one.ended.why
    ]
    return Group(results_table(results), *([Text(""), *why] if why else []))


def change_lines(changes: Sequence[NightChange]) -> list[str]:
    """Return what changed since the nights before in a line each, regressions first."""
    ordered = sorted(changes, key=lambda change: not change.regressed)
    return [
        f"{'REGRESSED ' * change.regressed}{change.cell}: {change.what} (night {change.against})"
        f"{'; ' * bool(change.beside)}{', '.join(change.beside)}"
        for change in ordered
    ]


def changes_view(changes: Sequence[NightChange]) -> RenderableType:
    """Return what changed since the nights before, regressions in red."""
    count = sum(change.regressed for change in changes)
    lines = [
        Text(line, style="red" if number < count else "") for number, line in enumerate(change_lines(changes))
    ]
    return Group(Text("Since the good nights before:", style="bold"), *lines)


def cell_line(entry: CellEnded) -> str:
    """Return how a cell ended in one line, for a log."""
    name, _ = STATES[entry.state]
    if entry.winner is None:
        return f"{entry.cell}: {name}: {entry.why.partition(chr(10))[0]}"
    return (
        f"{entry.cell}: {name}: {_winner(entry)}, {speed_of(entry)} tokens/s, {_peak(entry)}, "
        f"{format_counted(entry.probes, 'probe')} in {format_duration(entry.seconds)}"
    )


def _state(ended: CellEnded | None) -> Text:
    name, style = ("-", "dim") if ended is None else STATES[ended.state]
    return Text(name, style=style)


def _winner(ended: CellEnded | None) -> str:
    if ended is None or ended.winner is None:
        return "-"
    return f"{ended.winner.title}, micro-batch {format_count(ended.winner.micro_batch)}"


def speed_of(ended: CellEnded | None) -> str:
    """Return the tokens per second of a winner with their interval."""
    if ended is None or ended.winner is None:
        return "-"
    interval = ended.winner.interval
    return format_count(ended.winner.tokens_per_second) + (
        "" if interval is None else f" ± {format_count(interval)}"
    )


def _change(change: float | None) -> str:
    return "-" if change is None else f"{change:+.1%}"


def _peak(ended: CellEnded | None) -> str:
    return "-" if ended is None or ended.winner is None else format_bytes(ended.winner.peak)


def _count(ended: CellEnded | None) -> str:
    return "-" if ended is None else format_count(ended.probes)


def _apart(parts: Iterable[RenderableType]) -> list[RenderableType]:
    return [piece for part in parts for piece in (part, Text(""))][:-1]


def _probes(one: PlannedCell) -> str:
    return f"{'<= ' if one.basis == 'assumed' else ''}{one.probes:,}"


def _cached(one: PlannedCell) -> str:
    return "-" if one.cached is None else f"{one.cached:,}"


def _basis(one: PlannedCell) -> str:
    return {"measured": f"night {one.night}", "alike": "cells like it", "assumed": "assumed"}[one.basis]


def _cost(cost: float | None, currency: str) -> str:
    return "-" if cost is None else Price(amount=max(cost, 1e-9), currency=currency).of(cost)
