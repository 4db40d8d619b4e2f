"""A comparison as Markdown, for a CI's summary or a message."""

from __future__ import annotations

from autotune.results.changes import KINDS, NightChange, NightComparison
from autotune.results.row import CellRow
from autotune.techniques.families import title as title_of
from autotune.units import format_bytes, format_count

MOST = 200
"""Cells of the table, at most; those with changes come first."""


def headline(comparison: NightComparison) -> str:
    """Return in one sentence what came of a night."""
    cells = {change.cell for change in comparison.regressions}
    compared = len(comparison.cells) - len(comparison.uncompared)
    what = (
        f"{len(cells)} of {compared} cells regressed" if cells else f"nothing regressed in {compared} cells"
    )
    more = f", {len(comparison.uncompared)} not compared" if comparison.uncompared else ""
    return f"{comparison.sweep}, night {comparison.night}: {what}{more}"


def markdown(comparison: NightComparison) -> str:
    """Return the text: what regressed, what else changed, and a table of cells."""
    parts = [f"## {_text(headline(comparison))}", ""]
    told = [change for change in comparison.changes if not change.regressed]
    for title, changes in (("Regressed", comparison.regressions), ("Also changed", told)):
        if changes:
            parts += [f"### {title}", "", *(_item(change) for change in changes), ""]
    if comparison.uncompared:
        parts += ["### Not compared", ""]
        parts += [
            f"- **{_text(one.cell)}** ({_words(one.state)}): {_text(one.why)}"
            for one in comparison.uncompared
        ]
        parts += [""]
    changed = {change.cell for change in comparison.changes}
    rows = sorted(comparison.cells, key=lambda row: (row.cell not in changed, row.cell))
    parts += [
        "| cell | state | winner | tokens/s | peak | change |",
        "| --- | --- | --- | ---: | ---: | --- |",
    ]
    parts += [_row(row, comparison) for row in rows[:MOST]]
    if len(rows) > MOST:
        parts += ["", f"and {len(rows) - MOST:,} more cells without a change in this table"]
    return "\n".join(parts).rstrip() + "\n"


def _item(change: NightChange) -> str:
    chance = "" if change.chance is None else f" (by chance: {change.chance:.1g})"
    beside = "".join(f"\n  - {_text(other)}" for other in change.beside)
    return f"- **{_text(change.cell)}**, {KINDS[change.kind]}: {_text(change.what)}{chance}{beside}"


def _row(row: CellRow, comparison: NightComparison) -> str:
    winner = "" if row.winner is None else f"{title_of(row.winner)}, micro-batch {row.winner.micro_batch}"
    speed = "" if row.tokens_per_second is None else format_count(round(row.tokens_per_second))
    peak = "" if row.peak is None else format_bytes(row.peak)
    kinds = [KINDS[change.kind] for change in comparison.changes if change.cell == row.cell]
    values = (row.cell, _words(row.state), winner, speed, peak, ", ".join(dict.fromkeys(kinds)))
    return f"| {' | '.join(_text(value).replace('|', '&#124;') for value in values)} |"


def _words(state: str) -> str:
    return state.replace("_", " ")


def _text(text: str) -> str:
    """Return text in which nothing is markup: names of models and messages come from elsewhere."""
    for mark in ("\\", "`", "*", "_", "[", "]", "#"):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
