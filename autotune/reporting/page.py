"""The report of a run as one page for a browser: it holds all that it shows, and needs no network."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.text import Text

from autotune.errors import InputError
from autotune.picture import DRAWN_BY, check_picture
from autotune.printable import printable
from autotune.probe.folder import write_atomically
from autotune.reporting.columns import FittingTable
from autotune.reporting.front_figure import front_figure
from autotune.reporting.reported import Reported
from autotune.reporting.tables import not_measured, path_lines, rejected_lines, trial_table
from autotune.reporting.tradeoffs import changes_table, front_table, worth_showing
from autotune.reporting.winner import winner_rows
from autotune.run.paths import RunPaths
from autotune.search.wording import skipped
from autotune.specs import ABSENT
from autotune.techniques.families import title as title_of
from autotune.units import format_counted

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 0 auto; max-width: 1180px; }
body { padding: 1rem 1.25rem 3rem; }
h1 { font-size: 1.45rem; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; border-bottom: 1px solid #ddd; }
p.note { color: #555; margin: .3rem 0; max-width: 75ch; }
p.absent { color: #8a5a00; background: #fff6e0; padding: .5rem .75rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th { text-align: left; border-bottom: 1px solid #999; white-space: pre-line; }
th, td { padding: .25rem .9rem .25rem 0; vertical-align: top; }
td.right, th.right { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
tr.winner td { font-weight: 600; }
table.facts td:first-child { color: #666; white-space: nowrap; }
ul { padding-left: 1.2rem; margin: .3rem 0; }
"""


def write_page(paths: RunPaths, file: Path) -> None:
    """Write the report of a run to an .html file. Raises InputError where that, or the run, cannot be used."""
    check_picture("--html", file, {".html": DRAWN_BY[".html"]})
    text = page(Reported.read(paths))
    try:
        write_atomically(file, text)
    except OSError as error:
        raise InputError(f"--html {file} cannot be written: {error.strerror}", about="html") from None


def page(run: Reported) -> str:
    """Return the page's text."""
    spec = run.spec
    title = f"{spec.model.name} on {spec.device}, {spec.goal.target} a step"
    parts = [f"<h1>{_text(title)}</h1>"]
    if spec.device.kind in ABSENT:
        parts.append(f'<p class="absent">{_text(str(not_measured(spec.device)).strip())}</p>')
    parts += [*_winner(run), *_memory_against_speed(run), *_search(run), *_left(run)]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _winner(run: Reported) -> list[str]:
    if run.best is None:
        why = run.record.decided.why if run.record.decided is not None else "the run is not finished"
        return [_heading("No winner"), f"<p>{_text(why)}</p>"]
    rows = "".join(
        f"<tr><td>{_text(name)}</td><td>{_text(value)}</td></tr>" for name, value in winner_rows(run.best)
    )
    return [_heading("Winner"), f'<div class="wide"><table class="facts">{rows}</table></div>']


def _memory_against_speed(run: Reported) -> list[str]:
    found = run.tradeoffs
    if run.context is None or found is None:
        return []
    parts = []
    if worth_showing(found.points):
        parts += [
            _heading("Memory against speed"),
            '<p class="note">Each mark is a configuration. The line joins those that nothing else beats in both; '
            "what was measured and what is only predicted have marks of their own. Bars are 95% intervals.</p>",
            front_figure(found, run.context),
            _table(front_table(found), [found.is_winner(p) for p in found.front]),
        ]
    if found.changes:
        parts += [
            _heading("One step from the winner"),
            '<p class="note">What changes if one axis alone is changed by one step, in the order of the search space, '
            "or the micro-batch to the next that is worth a probe.</p>",
            _table(changes_table(found)),
        ]
    return parts


def _search(run: Reported) -> list[str]:
    if run.context is None:
        return []
    parts = []
    if run.record.path:
        lines = path_lines(run.record.path, run.context.space, run.record.history, run.spec.allow)
        parts += [_heading("Path through the graph"), _list(lines)]
    elif run.record.history:
        parts += [
            _heading(f"Search by strategy {run.spec.strategy}"),
            f"<p>{_text(format_counted(len(run.record.history), 'probe'))}</p>",
        ]
    if run.record.searched is not None:
        parts.append(f'<p class="note">The search ended: {_text(run.record.searched.why)}.</p>')
    if run.record.history:
        parts += [_heading("Probes"), _table(trial_table(run.record.history, run.context))]
    return parts


def _left(run: Reported) -> list[str]:
    """Return what did not win, was not probed, or is not known, each with why."""
    record, context, parts = run.record, run.context, []
    winner, best = run.winner, run.best
    lines = (
        rejected_lines(run.trials, context, winner, best.drift, run.pairs)
        if context is not None and winner is not None and best is not None
        else []
    )
    if lines:
        parts += [_heading("Rejected"), _list(lines)]
    if context is not None and record.skipped:
        lines = [skipped(entry.candidate, entry.prediction, context) for entry in record.skipped]
        parts += [_heading("Passed over by prediction"), _list(lines)]
    if untraced := [f"{title_of(e.candidate)}: {e.reason}" for e in record.traced if e.reason]:
        parts += [_heading("Not predicted"), _list(untraced)]
    if record.unknown:
        parts += [_heading("Unknown"), _list(entry.title for entry in record.unknown)]
    return parts


def _heading(text: str) -> str:
    return f"<h2>{_text(text)}</h2>"


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>"


def _table(table: FittingTable, marked: Sequence[bool] = ()) -> str:
    """Return a table of the terminal with all its columns but bars and empty ones; rows that are `marked` stand out."""
    columns = [column for column in table.columns if any(_plain(cell).strip("━") for cell in column.cells)]

    def cell(tag: str, text: str, right: bool) -> str:
        return f"<{tag}{_class('right', right)}>{_text(text)}</{tag}>"

    sides = [column.justify == "right" for column in columns]
    titles = [_unbroken(column.title) for column in columns]
    head = "".join(cell("th", title, right) for title, right in zip(titles, sides, strict=True))
    rows = []
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        shown = "".join(cell("td", _plain(text), right) for text, right in zip(cells, sides, strict=True))
        rows.append(f"<tr{_class('winner', any(marked[number : number + 1]))}>{shown}</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _unbroken(title: str) -> str:
    """Return a column's title without the breaks that a terminal needs."""
    return title.replace("micro-\n", "micro-").replace("-\n", "").replace("\n", " ")


def _class(name: str, given: bool) -> str:
    return f' class="{name}"' if given else ""


def _plain(cell: str | Text) -> str:
    return cell.plain if isinstance(cell, Text) else cell


def _text(text: str) -> str:
    return html.escape(printable(text).replace(" -> ", " → "))
