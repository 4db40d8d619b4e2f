"""The pages of a sweep: one for each night, and an index over nights. Each holds all that it shows: no network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from autotune.errors import AutotuneError, unwritable
from autotune.probe.folder import write_atomically
from autotune.reporting.columns import Column, FittingTable
from autotune.reporting.markup import bullets, document, escaped, heading, table
from autotune.reporting.page import page as run_page
from autotune.reporting.reported import Reported
from autotune.run.paths import JOURNAL
from autotune.sweep.events import CellEnded
from autotune.sweep.journal import NightRecord, read_night
from autotune.sweep.matrix import Cell
from autotune.sweep.night import NightPaths
from autotune.sweep.progress import NightProgress, progress_of, results_of_cells, speeds_before
from autotune.sweep.tables import STATES, change_lines, progress_text, results_table, speed_of
from autotune.units import format_count, format_duration

PAGE, INDEX = "report.html", "index.html"
"""Names of the pages of a run or a night, and of the index beside the nights."""
NIGHTS = 60
"""Nights of a trend line, and of the index, at most: the newest."""

_LOOKS = {"green": "good", "yellow": "odd", "red": "bad", "magenta": "odd"}
_WIDE, _HIGH = 140, 26
"""Pixels of a trend line."""


class NightSeen(NamedTuple):
    """One night of a sweep, as its journal tells of it."""

    paths: NightPaths
    record: NightRecord


def write_pages(paths: NightPaths, cells: Sequence[Cell]) -> tuple[Path, Path]:
    """Write the page of a night, those of its runs, and the index over all nights.

    Returns the paths of the night's page and of the index. Raises InputError where they cannot be written.
    """
    nights = nights_beside(paths)
    linked = set()
    for cell in read_night(paths).ended:
        run = paths.run(cell)
        try:
            write_atomically(run.root / PAGE, run_page(Reported.read(run)))
        except (AutotuneError, OSError):  # it did not come that far: the night's page says why
            continue
        linked.add(cell)
    page, index = paths.root / PAGE, paths.root.parent / INDEX
    for file, text in ((page, night_page(paths, nights, cells, linked)), (index, index_page(nights))):
        try:
            write_atomically(file, text)
        except OSError as error:
            raise unwritable(f"{file} cannot be written", error, "html") from None
    return page, index


def nights_beside(paths: NightPaths) -> tuple[NightSeen, ...]:
    """Return the newest nights of the same sweep, the oldest first; those that cannot be read are left out."""
    found = []
    for journal in sorted(paths.root.parent.glob(f"*/{JOURNAL}"))[-NIGHTS:]:
        night = NightPaths(journal.parent)
        try:
            found.append(NightSeen(night, read_night(night)))
        except AutotuneError:
            continue
    return tuple(found)


def night_page(
    paths: NightPaths, nights: Sequence[NightSeen], cells: Sequence[Cell], linked: set[str] | frozenset[str]
) -> str:
    """Return the page of a night; `linked` are the cells whose runs have a page of their own."""
    record, progress = read_night(paths), progress_of(paths)
    title = f"sweep {paths.sweep}, night {paths.id}"
    before = [night for night in nights if night.paths.id <= paths.id]
    results = results_of_cells(record, speeds_before(paths))
    why = [f"{one.cell}: {one.ended.why}" for one in results if one.ended is not None and one.ended.why]

    def link(text: str) -> str | None:
        return f"cells/{text}/{PAGE}" if text in linked else None

    parts = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="note">{escaped(progress_text(progress))}</p>',
        heading("Matrix"),
        _matrix(record, cells, linked),
        heading("Cells"),
        table(results_table(results), link=link),
    ]
    if why:
        parts += [heading("Without a winner"), bullets(why)]
    if record.compared is not None and record.compared.changes:
        parts += [heading("Since the good nights before"), bullets(change_lines(record.compared.changes))]
    if trends := _trends(before, [cell.id for cell in cells]):
        parts += [
            heading("Trend"),
            f'<p class="note">Tokens per second of the winner over {len(before)} nights.</p>',
            trends,
        ]
    parts.append(f'<p class="note"><a href="../{INDEX}">all nights of this sweep</a></p>')
    return document(title, parts)


def index_page(nights: Sequence[NightSeen]) -> str:
    """Return the index over nights, the newest first."""
    sweep = nights[-1].paths.sweep if nights else "?"
    title = f"sweep {sweep}: nights"
    newest = list(reversed(nights))
    told: list[NightProgress] = [progress_of(night.paths) for night in newest]
    listed = FittingTable(
        [
            Column("night", [night.paths.id for night in newest]),
            Column("cells", [format_count(one.cells) for one in told], justify="right"),
            Column("proven", [format_count(one.states.get("proven", 0)) for one in told], justify="right"),
            Column("without a winner", [_others(one) for one in told]),
            Column("regressed", [_regressed(night.record) for night in newest], justify="right"),
            Column("not ended", [format_count(one.cells - one.ended) for one in told], justify="right"),
            Column("probes", [format_count(one.probes) for one in told], justify="right"),
            Column("time of probes", [format_duration(one.seconds) for one in told], justify="right"),
        ]
    )
    names = {night.paths.id for night in newest if (night.paths.root / PAGE).exists() or night is newest[0]}
    parts = [
        f"<h1>{escaped(title)}</h1>",
        table(listed, link=lambda text: f"{text}/{PAGE}" if text in names else None),
    ]
    asked = [night.record.asked.cells for night in newest if night.record.asked is not None]
    cells = list(dict.fromkeys(cell for of_night in asked for cell in of_night))
    if trends := _trends(nights, cells):
        parts += [heading("Tokens per second of the winner"), trends]
    return document(title, parts)


def _regressed(record: NightRecord) -> str:
    return (
        "-"
        if record.compared is None
        else format_count(len({one.cell for one in record.compared.regressions}))
    )


def _others(progress: NightProgress) -> str:
    told = [f"{count} {STATES[state][0]}" for state, count in progress.states.items() if state != "proven"]
    return ", ".join(told) or "-"


def _matrix(record: NightRecord, cells: Sequence[Cell], linked: set[str] | frozenset[str]) -> str:
    """Return models, goals and spaces down, hardware across; each cell with what came of it."""
    across = list(dict.fromkeys(cell.hardware for cell in cells))
    rows: dict[tuple[str, ...], dict[str, Cell]] = {}
    for cell in cells:
        key = (cell.model, cell.goal, *([cell.space] if cell.space else []))
        rows.setdefault(key, {})[cell.hardware] = cell
    head = "".join(f"<th>{escaped(name)}</th>" for name in ("", *across))
    body = []
    for key, found in rows.items():
        shown = [
            _matrix_cell(found[name], record, linked) if name in found else "<td></td>" for name in across
        ]
        body.append(f"<tr><th>{escaped(', '.join(key))}</th>{''.join(shown)}</tr>")
    return f'<div class="wide"><table class="matrix"><tr>{head}</tr>{"".join(body)}</table></div>'


def _matrix_cell(cell: Cell, record: NightRecord, linked: set[str] | frozenset[str]) -> str:
    ended = record.ended.get(cell.id)
    if ended is None:
        return "<td>-</td>"
    state, colour = STATES[ended.state]
    said = f"{speed_of(ended)} tokens/s" if ended.winner is not None else state
    if cell.id in linked:
        said = f'<a href="{html.escape(quote(f"cells/{cell.id}/{PAGE}"))}">{escaped(said)}</a>'
    else:
        said = escaped(said)
    return f'<td class="{_LOOKS[colour]}">{said}<span class="small">{escaped(_detail(ended))}</span></td>'


def _detail(ended: CellEnded) -> str:
    if ended.winner is None:
        return ended.why.partition("\n")[0][:60]
    return f"{ended.winner.title}, micro-batch {format_count(ended.winner.micro_batch)}"


def _trends(nights: Sequence[NightSeen], cells: Sequence[str]) -> str:
    """Return a line for each cell that had a winner in several nights; empty where none had."""
    rows = []
    for cell in cells:
        speeds = []
        for night in nights:
            entry = night.record.ended.get(cell)
            speeds.append(None if entry is None or entry.winner is None else entry.winner.tokens_per_second)
        known = [speed for speed in speeds if speed is not None]
        if len(known) > 1:
            last = f"{format_count(known[0])} → {format_count(known[-1])}"
            rows.append(f"<tr><td>{escaped(cell)}</td><td>{_line(speeds)}</td><td>{escaped(last)}</td></tr>")
    return f'<div class="wide"><table>{"".join(rows)}</table></div>' if rows else ""


def _line(speeds: Sequence[float | None]) -> str:
    """Return a trend as a drawing: nights from left to right, from nothing at the bottom to the fastest at the top."""
    most = max(speed for speed in speeds if speed is not None)
    step = (_WIDE - 6) / max(1, len(speeds) - 1)
    points = [
        (3 + place * step, _HIGH - 3 - (_HIGH - 6) * speed / most)
        for place, speed in enumerate(speeds)
        if speed is not None
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    return (
        f'<svg class="trend" width="{_WIDE}" height="{_HIGH}" role="img" aria-label="tokens per second over nights">'
        f'<polyline points="{line}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/></svg>'
    )
