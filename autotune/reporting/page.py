"""The report of a run as one page for a browser: it holds all that it shows, and needs no network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from autotune.commands import command
from autotune.errors import unwritable
from autotune.outcome import Ok
from autotune.picture import check_file
from autotune.probe.folder import write_atomically
from autotune.reporting.drawing import textures
from autotune.reporting.front_figure import front_figure
from autotune.reporting.markup import (
    bullets,
    chips,
    document,
    escaped,
    facts,
    heading,
    navigation,
    note,
    table,
)
from autotune.reporting.probe_rows import probe_table
from autotune.reporting.reported import Reported
from autotune.reporting.step_figure import read_curve, step_figure
from autotune.reporting.tables import not_measured, path_steps, rejected_lines
from autotune.reporting.tradeoffs import changes_table, front_table, worth_showing
from autotune.reporting.what_next import what_next
from autotune.reporting.winner_card import checks_table, winner_card
from autotune.run.events import Opened
from autotune.run.paths import RunPaths
from autotune.run.sealed_lines import holder
from autotune.search.selection import score
from autotune.search.wording import PHASES, detail, skipped, verdict
from autotune.specs import ABSENT
from autotune.techniques.families import title as title_of
from autotune.trial import RematchFinished
from autotune.units import format_bytes, format_count, format_counted, format_duration

_SUMMED_UP = 200
"""Probes up to which what was rejected is summed up by rung too; beyond, each says so of itself alone."""


class Section(NamedTuple):
    """A part of the page that links lead to."""

    anchor: str
    title: str
    parts: list[str]


def write_page(paths: RunPaths, file: Path) -> None:
    """Write the report of a run to an .html file. Raises InputError where that, or the run, cannot be used."""
    check_file("--html", file, (".html",))
    write_html(file, page(Reported.read(paths)))


def write_html(file: Path, text: str) -> None:
    """Write a page whole or not at all. Raises InputError."""
    try:
        write_atomically(file, text)
    except OSError as error:
        raise unwritable(f"--html {file} cannot be written", error, "html") from None


def page(run: Reported) -> str:
    """Return the page's text."""
    spec = run.spec
    title = f"{spec.model.name} on {spec.device}, {spec.goal.target} a step"
    parts = [textures(), f"<h1>{escaped(title)}</h1>", chips(_state(run))]
    if spec.device.kind in ABSENT:
        parts.append(f'<p class="absent">{escaped(str(not_measured(spec.device)).strip())}</p>')
    sections = [section for section in _sections(run) if section.parts]
    for section in sections:
        parts += [heading(section.title, section.anchor), *section.parts]
    parts.append(_footer(run))
    shown = [(section.anchor, section.title) for section in sections]
    return document(f"{title} - autotune", parts, [navigation(shown)], active=True)


def _sections(run: Reported) -> Iterator[Section]:
    yield Section("winner", "Winner" if run.best else "No winner", _winner(run))
    if run.best is not None and run.best.proof is not None:
        yield Section("proof", "Proof", [f"<p>{escaped(run.best.proof.why)}</p>", checks_table(run.best)])
    yield Section("step", "Memory of a step", _step(run))
    yield Section("tradeoffs", "Memory against speed", _front(run))
    yield Section("sensitivity", "One step from the winner", _sensitivity(run))
    yield Section("path", "Path through the graph", _path(run))
    yield Section("probes", "Probes", _probes(run))
    yield Section("rejected", "Rejected", _rejected(run))
    if run.context is not None and run.record.skipped:
        lines = [skipped(entry.candidate, entry.prediction, run.context) for entry in run.record.skipped]
        yield Section("skipped", "Passed over by prediction", [bullets(lines)])
    untraced = [f"{title_of(entry.candidate)}: {entry.reason}" for entry in run.record.traced if entry.reason]
    yield Section("untraced", "Not predicted", [bullets(untraced)] if untraced else [])
    yield Section("finals", "Measured again", _finals(run))
    unknown = [entry.title for entry in run.record.unknown]
    yield Section("unknown", "Unknown", [bullets(unknown)] if unknown else [])
    yield Section("environment", "Environment", _environment(run))
    yield Section("next", "Next", _next(run))


def _state(run: Reported) -> Iterator[tuple[str, str]]:
    record = run.record
    if run.best is not None:
        proven = run.best.proof is not None and run.best.proof.passed
        yield ("✓ proven", "good") if proven else (f"{run.best.evidence}, not proven", "odd")
    elif record.decided is not None:
        yield "✕ no winner", "bad"
    else:
        yield ("running" if holder(run.paths.lock) is not None else "not finished"), "odd"
    if (began := run.began) is not None:
        yield f"{began:%Y-%m-%d %H:%M} UTC", ""
    yield run.paths.id, ""
    yield format_counted(len(record.history), "probe"), ""
    if seconds := sum(trial.seconds for trial in record.history):
        yield f"{format_duration(seconds)} of probes", ""
    yield f"strategy {run.spec.strategy}, space {run.spec.space_name}", ""


def _winner(run: Reported) -> list[str]:
    if run.best is not None and run.context is not None:
        return winner_card(run.best, run.context.usable)
    decided = run.record.decided
    if decided is None:
        return ["<p>The run is not finished.</p>"]
    parts = [f'<div class="card"><p>{escaped(decided.why)}</p></div>']
    if decided.causes:
        lines = [
            f"{title_of(cause.candidate)}, micro-batch {format_count(cause.candidate.micro_batch)}: {cause.why}"
            for cause in decided.causes
        ]
        parts += ["<h3>How each rung ended</h3>", bullets(lines)]
    elif said := [
        f"probe {trial.number}: {detail(trial.outcome)}"
        for trial in run.record.history
        if detail(trial.outcome)
    ]:
        parts += ["<h3>What was refused</h3>", bullets(said)]
    return parts


def _step(run: Reported) -> list[str]:
    """Return the memory of one step of the winner: by its trace, where there is one, beside what was measured."""
    winner = run.winner
    if winner is None or not isinstance(winner.outcome, Ok):
        return []
    measured = [] if run.spec.device.kind in ABSENT else list(winner.outcome.phases)
    parts = []
    if (curve := read_curve(run.paths)) is None:
        parts.append(
            note("The run wrote down no trace of its winner, so the course of a step is not known here.")
        )
    else:
        lines = "; a thick line is the peak that a probe measured in that phase" if measured else ""
        parts.append(
            f"<figure>{step_figure(curve, measured)}<figcaption>Tensors on the device in the second optimizer step, "
            "allocation by allocation, as the model's trace predicts them. Allocator and libraries are not in it"
            f"{lines}.</figcaption></figure>"
        )
    if measured:
        rows = "".join(
            f'<tr><th scope="row">{escaped(PHASES[report.phase])}</th>'
            f'<td class="right">{format_bytes(report.peak)}</td><td class="right">{format_bytes(report.end)}</td>'
            f'<td class="right">{format_duration(report.seconds)}</td></tr>'
            for report in measured
        )
        parts.append(
            f"<details{' open' * (curve is None)}><summary>Measured, phase by phase</summary>"
            '<div class="wide" tabindex="0"><table><thead><tr><th scope="col">phase</th><th scope="col" class="right">'
            'peak of tensors</th><th scope="col" class="right">at its end</th><th scope="col" class="right">time</th>'
            f"</tr></thead><tbody>{rows}</tbody></table></div></details>"
        )
    return parts


def _front(run: Reported) -> list[str]:
    found = run.tradeoffs
    if run.context is None or found is None or not worth_showing(found.points):
        return []
    return [
        f"<figure>{front_figure(found, run.context)}<figcaption>Each mark is a configuration, each bar a 95% interval. "
        "What was measured and what is only predicted have marks of their own.</figcaption></figure>",
        table(front_table(found), [found.is_winner(point) for point in found.front]),
    ]


def _sensitivity(run: Reported) -> list[str]:
    if (found := run.tradeoffs) is None or not found.changes:
        return []
    return [
        note(
            "What changes if one axis alone is changed by one step, in the order of the search space, or the "
            "micro-batch to the next that is worth a probe."
        ),
        table(changes_table(found)),
    ]


def _path(run: Reported) -> list[str]:
    record, context = run.record, run.context
    if context is None:
        return []
    parts = []
    if record.path:
        items = "".join(
            f"<li><b>{escaped(step.title)}</b> <span class='note'>{escaped(step.at)}</span>"
            f'<span class="result">{escaped(step.how)} → {escaped(step.after)}</span></li>'
            for step in path_steps(record.path, context.space, record.history, run.spec.allow)
        )
        parts.append(f'<ol class="path">{items}</ol>')
    elif record.history:
        parts.append(f"<p>{escaped(run.spec.strategy)} searches without the graph.</p>")
    if record.searched is not None:
        parts.append(note(f"The search ended: {record.searched.why}."))
    return parts


def _probes(run: Reported) -> list[str]:
    return [probe_table(run)] if run.context is not None and run.record.history else []


def _rejected(run: Reported) -> list[str]:
    context, winner, best = run.context, run.winner, run.best
    if context is None or winner is None or best is None or len(run.record.history) > _SUMMED_UP:
        return []
    lines = rejected_lines(run.trials, context, winner, best.drift, run.pairs)
    return [bullets(lines)] if lines else []


def _finals(run: Reported) -> list[str]:
    """Return what was measured once more: rematches of finalists, and proofs that did not hold."""
    record, context = run.record, run.context
    if context is None:
        return []
    lines = [
        f"round {again.round}: probe {again.number}, {verdict(again.outcome, context)}{_speed(run, again)}"
        for again in record.rematches
    ]
    lines += [f"proof of probe {proof.number}: {proof.why}" for proof in record.proofs if not proof.passed]
    return [bullets(lines)] if lines else []


def _speed(run: Reported, again: RematchFinished) -> str:
    """Return the speed that a rematch measured, where it did."""
    trial, outcome = run.record.trial(again.number), again.outcome
    if run.context is None or trial is None or not isinstance(outcome, Ok) or outcome.timing is None:
        return ""
    found = score(trial.model_copy(update={"outcome": outcome}), run.context)
    return f", {format_count(found.tokens_per_second)} tokens/s"


def _environment(run: Reported) -> list[str]:
    record = run.record
    rows: list[tuple[str, str]] = []
    if run.context is not None and (site := record.opened_at) is not None:
        device = site.device
        rows = [
            ("device", device.name),
            ("budget", f"{format_bytes(device.budget)} of {format_bytes(device.total)}"),
            *([("driver", device.driver)] if device.driver else []),
            *site.machine.environment().items(),
        ]
    if run.best is not None:
        known = {name for name, _ in rows}
        rows += [(name, text) for name, text in run.best.environment.items() if name not in known]
        rows += [(name, str(value)) for name, value in run.best.variables.items()]
    opened = [entry for entry in record.entries if isinstance(entry, Opened)]
    if opened:
        rows.insert(0, ("autotune", opened[-1].version))
    if len(opened) > 1:
        rows.append(("started", f"{format_count(len(opened))} times: the run was interrupted and went on"))
    return [facts(dict(rows).items())] if rows else []


def _next(run: Reported) -> list[str]:
    if run.best is not None:
        lines = what_next(run.paths, run.best)
    elif run.record.decided is None:
        lines = [command("resume", run.paths.root)]
    else:
        lines = [command("report", run.paths.root)]
    said = [line for line in lines if not line.startswith("autotune ")]
    items = "".join(
        f"<li><code>{escaped(line, arrows=False)}</code></li>"
        for line in lines
        if line.startswith("autotune ")
    )
    return [*(f"<p>{escaped(line)}</p>" for line in said), f'<ul class="commands">{items}</ul>']


def _footer(run: Reported) -> str:
    opened = next((entry for entry in reversed(run.record.entries) if isinstance(entry, Opened)), None)
    by = f" by autotune {opened.version}" if opened is not None else ""
    return (
        f'<p class="note small">Made{escaped(by)} from {escaped(str(run.paths.root))}. Memory is in GiB (2^30 bytes). '
        "This page loads nothing from anywhere.</p>"
    )
