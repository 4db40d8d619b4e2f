"""What a run knows beside its winner: memory against speed, and what one step away from the winner changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from autotune.candidate import Candidate
from autotune.outcome import Drift
from autotune.reporting.columns import Column, FittingTable
from autotune.run.best import Best
from autotune.run.proof import in_running
from autotune.run.record import Record
from autotune.search.context import SearchContext
from autotune.search.drift import drift_of
from autotune.search.pareto import Point, measured_points, pareto_front, predicted_points
from autotune.search.sensitivity import NeighbourEffect, sensitivity
from autotune.specs import Evidence
from autotune.techniques.families import title as title_of
from autotune.units import format_bytes, format_count

_STYLES = {"predicted": "yellow", "replayed": "yellow", "refused": "dim", "unknown": "dim"}


@dataclass(frozen=True)
class Tradeoffs:
    """Points and changes of one run, each with its evidence."""

    points: tuple[Point, ...]
    """Everything whose memory is known, probed or not."""
    front: tuple[Point, ...]
    """Those that fit and that none of the others beats in both memory and speed; the smallest peak first."""
    changes: tuple[NeighbourEffect, ...]
    """One step in each axis from the winner; empty without one."""
    winner: Point | None
    """Where the winner is."""

    @classmethod
    def of(cls, record: Record, context: SearchContext, best: Best | None, evidence: Evidence) -> Tradeoffs:
        """Return what a record adds up to. A trial stands as its rematches measured it, or its proof."""
        drift: Drift = drift_of(record.history, (*record.rematches, *record.proofs), context)
        proven = {
            trial.number: trial for trial in in_running(record.history, record.rematches, record.proofs)
        }
        history = tuple(proven.get(trial.number, trial) for trial in record.history)
        priced = record.surveyed.priced if record.surveyed is not None else ()
        points = [
            *measured_points(history, context, drift, evidence),
            *predicted_points(priced, context, history),
        ]
        changes: list[NeighbourEffect] = []
        if best is not None:
            untraced = {entry.candidate.rung(): entry.reason for entry in record.traced if entry.reason}
            changes = sensitivity(best.candidate, context, history, points, untraced, evidence)
        winner = next((point for point in points if best and point.candidate == best.candidate), None)
        return cls(tuple(points), tuple(pareto_front(points)), tuple(changes), winner)

    def is_winner(self, point: Point) -> bool:
        """Tell whether a point is the winner's."""
        return point is self.winner


def front_table(found: Tradeoffs) -> FittingTable:
    """Return the front as a table, the smallest peak first."""
    front = found.front
    return FittingTable([
        Column("configuration", [title_of(point.candidate) for point in front], least=20),
        Column("micro-\nbatch", [str(point.candidate.micro_batch) for point in front], justify="right"),
        Column("peak", [peak_text(point) for point in front], justify="right"),
        Column("tokens/s", [speed_text(point) for point in front], justify="right"),
        Column("evidence", [_evidence(point.evidence) for point in front]),
        Column("", ["winner" if found.is_winner(point) else "" for point in front], leaves=1),
    ])  # fmt: skip


def changes_table(found: Tradeoffs) -> FittingTable:
    """Return what one step in each axis changes, as a table."""
    changes = found.changes
    return FittingTable([
        Column("axis", [change.axis for change in changes]),
        Column("step", [step_text(change) for change in changes], least=12),
        Column("peak", [peak_change(change, found) for change in changes], least=12, justify="right"),
        Column("tokens/s", [speed_change(change, found) for change in changes], justify="right"),
        Column("evidence", [_evidence(change.known) for change in changes]),
        Column("", [change_note(change) for change in changes], leaves=1, least=24, style="dim"),
    ])  # fmt: skip


def step_text(change: NeighbourEffect) -> str:
    """Return a step in words: `none -> selective`."""
    before, after = (_value(value) for value in (change.before, change.after))
    return f"{before} -> {after}"


def _value(value: Any) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def peak_text(point: Point) -> str:
    """Return a peak; of a predicted one with the half-width of its interval."""
    noise = f" ± {format_bytes((point.high - point.low) // 2)}" if point.high > point.low else ""
    return format_bytes(point.peak) + noise


def speed_text(point: Point) -> str:
    """Return a speed with the half-width of its interval; a dash where it is not known."""
    if point.tokens_per_second is None:
        return "-"
    return f"{format_count(point.tokens_per_second)} ± {format_count(point.interval)}"


def peak_change(change: NeighbourEffect, found: Tradeoffs) -> str:
    """Return a neighbour's peak, and how much more that is than the winner's."""
    if change.point is None:
        return "-"
    said = format_bytes(change.point.peak)
    if found.winner is None:
        return said
    more = change.point.peak - found.winner.peak
    return f"{said} ({'+' if more >= 0 else '-'}{format_bytes(abs(more))})"


def speed_change(change: NeighbourEffect, found: Tradeoffs) -> str:
    """Return a neighbour's speed, and by how much faster it does a global step; at most, where it ended early."""
    if change.point is not None and change.point.at_most is not None:
        return f"≤ {format_count(change.point.at_most)}"
    if change.point is None or change.point.tokens_per_second is None:
        return "-"
    said = format_count(change.point.tokens_per_second)
    if found.winner is None or not found.winner.seconds or not change.point.seconds:
        return said
    return f"{said} ({found.winner.seconds / change.point.seconds - 1:+.1%})"


def change_note(change: NeighbourEffect) -> str:
    """Return what has to be said of a neighbour beside its numbers."""
    if change.point is not None and not change.point.fits:
        return "does not fit" if change.point.number is None else "does not leave the headroom"
    return change.why


def _evidence(known: str) -> Text:
    return Text(known, style=_STYLES.get(known, ""))


def as_data(found: Tradeoffs) -> dict[str, Any]:
    """Return both as plain data, for `--json`."""
    return {
        "points": [_point(point, found) for point in found.points],
        "pareto_front": [_point(point, found) for point in found.front],
        "sensitivity": [
            {
                "axis": change.axis, "before": change.before, "after": change.after, "known": change.known,
                "why": change.why, "point": _point(change.point, found) if change.point else None,
            }
            for change in found.changes
        ],
    }  # fmt: skip


def _point(point: Point, found: Tradeoffs) -> dict[str, Any]:
    candidate: Candidate = point.candidate
    return {
        "candidate": candidate.model_dump(mode="json"), "title": title_of(candidate), "evidence": point.evidence,
        "peak": point.peak, "peak_interval": [point.low, point.high], "tokens_per_second": point.tokens_per_second,
        "tokens_per_second_interval": point.interval, "tokens_per_second_at_most": point.at_most,
        "seconds": point.seconds,
        "fits": point.fits, "trial": point.number,
        "winner": found.is_winner(point),
    }  # fmt: skip


def worth_showing(points: Sequence[Point]) -> bool:
    """Tell whether there is anything to compare."""
    return len([point for point in points if point.tokens_per_second is not None]) > 1
