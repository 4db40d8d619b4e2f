"""The report of a run as one page for a browser: it holds all that it shows, and needs no network."""

from __future__ import annotations

from pathlib import Path

from autotune.errors import InputError
from autotune.picture import DRAWN_BY, check_picture
from autotune.probe.folder import write_atomically
from autotune.reporting.front_figure import front_figure
from autotune.reporting.markup import bullets, document, escaped, heading, table
from autotune.reporting.reported import Reported
from autotune.reporting.tables import not_measured, path_lines, rejected_lines, trial_table
from autotune.reporting.tradeoffs import Tradeoffs, changes_table, front_table, worth_showing
from autotune.reporting.winner import winner_rows
from autotune.run.paths import RunPaths
from autotune.search.context import SearchContext
from autotune.search.wording import skipped
from autotune.specs import ABSENT
from autotune.techniques.families import title as title_of
from autotune.units import format_counted


def write_page(paths: RunPaths, file: Path) -> None:
    """Write the report of a run to an .html file. Raises InputError where that, or the run, cannot be used."""
    check_picture("--html", file, {".html": DRAWN_BY[".html"]})
    text = page(Reported.read(paths))
    try:
        write_atomically(file, text)
    except OSError as error:
        raise InputError(f"--html {file} cannot be written: {error.strerror}", about="html") from None


def page(run: Reported, picture: bool = True) -> str:
    """Return the page's text; the picture of memory against speed takes nearly all of it, and plotly to draw."""
    spec = run.spec
    title = f"{spec.model.name} on {spec.device}, {spec.goal.target} a step"
    parts = [f"<h1>{escaped(title)}</h1>"]
    if spec.device.kind in ABSENT:
        parts.append(f'<p class="absent">{escaped(str(not_measured(spec.device)).strip())}</p>')
    parts += [*_winner(run), *_memory_against_speed(run, picture), *_search(run), *_left(run)]
    return document(title, parts)


def _winner(run: Reported) -> list[str]:
    if run.best is None:
        why = run.record.decided.why if run.record.decided is not None else "the run is not finished"
        return [heading("No winner"), f"<p>{escaped(why)}</p>"]
    rows = "".join(
        f"<tr><td>{escaped(name)}</td><td>{escaped(value)}</td></tr>" for name, value in winner_rows(run.best)
    )
    return [heading("Winner"), f'<div class="wide"><table class="facts">{rows}</table></div>']


def _memory_against_speed(run: Reported, picture: bool) -> list[str]:
    found = run.tradeoffs
    if run.context is None or found is None:
        return []
    parts = []
    if worth_showing(found.points):
        parts += [
            heading("Memory against speed"),
            *(_picture(found, run.context) if picture else []),
            table(front_table(found), [found.is_winner(p) for p in found.front]),
        ]
    if found.changes:
        parts += [
            heading("One step from the winner"),
            '<p class="note">What changes if one axis alone is changed by one step, in the order of the search space, '
            "or the micro-batch to the next that is worth a probe.</p>",
            table(changes_table(found)),
        ]
    return parts


def _picture(found: Tradeoffs, context: SearchContext) -> list[str]:
    return [
        '<p class="note">Each mark is a configuration. The line joins those that nothing else beats in both; '
        "what was measured and what is only predicted have marks of their own. Bars are 95% intervals.</p>",
        front_figure(found, context),
    ]


def _search(run: Reported) -> list[str]:
    if run.context is None:
        return []
    parts = []
    if run.record.path:
        lines = path_lines(run.record.path, run.context.space, run.record.history, run.spec.allow)
        parts += [heading("Path through the graph"), bullets(lines)]
    elif run.record.history:
        parts += [
            heading(f"Search by strategy {run.spec.strategy}"),
            f"<p>{escaped(format_counted(len(run.record.history), 'probe'))}</p>",
        ]
    if run.record.searched is not None:
        parts.append(f'<p class="note">The search ended: {escaped(run.record.searched.why)}.</p>')
    if run.record.history:
        parts += [heading("Probes"), table(trial_table(run.record.history, run.context))]
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
        parts += [heading("Rejected"), bullets(lines)]
    if context is not None and record.skipped:
        lines = [skipped(entry.candidate, entry.prediction, context) for entry in record.skipped]
        parts += [heading("Passed over by prediction"), bullets(lines)]
    if untraced := [f"{title_of(e.candidate)}: {e.reason}" for e in record.traced if e.reason]:
        parts += [heading("Not predicted"), bullets(untraced)]
    if record.unknown:
        parts += [heading("Unknown"), bullets(entry.title for entry in record.unknown)]
    return parts
