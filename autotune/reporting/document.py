"""The report of a finished or unfinished run, read from its folder: as text for people, as data for programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from autotune.commands import command
from autotune.errors import InputError
from autotune.outcome import Drift, Ok
from autotune.reporting.reported import Reported
from autotune.reporting.tables import (
    failures,
    not_measured,
    path_lines,
    rejected_lines,
    section,
    trial_table,
)
from autotune.reporting.tradeoffs import Tradeoffs, as_data, changes_table, front_table, worth_showing
from autotune.reporting.what_next import what_next
from autotune.reporting.winner import winner_panel
from autotune.run.best import Best
from autotune.run.folder import load_spec
from autotune.run.journal import read_record
from autotune.run.offers import offer_lines
from autotune.run.paths import RunPaths
from autotune.run.record import Record
from autotune.run.sealed_lines import holder
from autotune.run.under_way import under_way
from autotune.search.context import SearchContext
from autotune.search.drift import drift_of
from autotune.search.incumbent import bound_of
from autotune.search.selection import score
from autotune.search.space import Space
from autotune.search.wording import skipped, verdict
from autotune.specs import ABSENT, RunSpec
from autotune.techniques.families import title as title_of
from autotune.trial import Trial
from autotune.units import format_counted


def document(paths: RunPaths) -> dict[str, Any]:
    """Return everything about a run as plain data: spec, model, trials, path, winner with its proof."""
    run = Reported.read(paths)
    spec, record, context, best, evidence = (
        run.spec,
        run.record,
        run.context,
        run.best,
        run.spec.device.evidence,
    )
    tradeoffs = run.tradeoffs
    return {
        "run": str(paths.root),
        "evidence": evidence,
        "spec": spec.model_dump(mode="json", exclude={"space"}),
        "model": record.inspection.facts.model_dump(mode="json") if record.inspection else None,
        "trials": _trials(record, context) if context else [],
        "skipped": [entry.model_dump(mode="json", exclude={"type"}) for entry in record.skipped],
        "traced": [entry.model_dump(mode="json", exclude={"type"}) for entry in record.traced],
        "path": [
            [step.node, step.edge, evidence if step.evidence == "measured" else step.evidence]
            for step in record.path
        ],
        "rematches": [entry.model_dump(mode="json", exclude={"type"}) for entry in record.rematches],
        "proofs": [proof.model_dump(mode="json", exclude={"outcome"}) for proof in record.proofs],
        "unknown": [entry.model_dump(mode="json") for entry in record.unknown],
        "tradeoffs": None if tradeoffs is None else as_data(tradeoffs),
        **_state(paths, record),
        "decided": record.decided.model_dump(mode="json") if record.decided else None,
        "best": best.model_dump(mode="json") if best else None,
    }


def drawing(paths: RunPaths) -> str:
    """Return the decision graph as Mermaid, with the path that the run took marked.

    Raises InputError for a run whose strategy walks no graph.
    """
    spec, record = load_spec(paths), read_record(paths.journal)
    if spec.strategy not in {"graph", "guided"}:
        raise InputError(
            f"--mermaid: this run searched by strategy {spec.strategy}, which walks no graph; "
            f"`{command('report', paths.root)}` shows what it tried, `autotune spaces draw {spec.space_name}` the "
            "graph",
            about="mermaid",
        )
    taken = tuple((step.node, step.edge) for step in record.path)
    return Space.load(spec.space, "space").graph.mermaid(taken)


def print_report(paths: RunPaths, console: Console) -> None:
    """Print a run from its folder: table of trials, then what `print_result` prints."""
    run = Reported.read(paths)
    spec, record, context = run.spec, run.record, run.context
    consent = f" (--allow {','.join(spec.allow)})" if spec.allow else ""
    console.print(
        Text(
            f"{paths.root}: {spec.model.name} on {spec.device}, {spec.goal.target} a step{consent}\n",
            style="bold",
        )
    )
    if spec.device.kind in ABSENT:
        console.print(not_measured(spec.device))
    if context and record.history:
        console.print(trial_table(record.history, context))
    _print_result(run, console, run.tradeoffs)


def print_result(paths: RunPaths, best: Best | None, console: Console) -> None:
    """Print path, winner, what was rejected and why, and the commands to go on with; first, if it is not measured."""
    if best is not None and best.evidence != "measured":
        console.print(not_measured(load_spec(paths).device))
    _print_result(replace(Reported.read(paths), best=best), console)


def _print_result(run: Reported, console: Console, tradeoffs: Tradeoffs | None = None) -> None:
    spec, record, context, best, winner = run.spec, run.record, run.context, run.best, run.winner
    if context is None or best is None or winner is None:
        _print_without_winner(run, console)
        return
    console.print(_search(spec, record, context.space))
    console.print(section("Winner", [winner_panel(best)]))
    if tradeoffs is not None and worth_showing(tradeoffs.points):
        console.print(section("Memory against speed: what nothing beats in both", [front_table(tradeoffs)]))
    if tradeoffs is not None and tradeoffs.changes:
        console.print(section("One step from the winner", [changes_table(tradeoffs)]))
    if lines := rejected_lines(run.trials, context, winner, best.drift, run.pairs):
        console.print(section("Rejected", lines))
    if passed_over := [skipped(entry.candidate, entry.prediction, context) for entry in record.skipped]:
        console.print(section("Passed over by prediction", passed_over))
    if best.unknown:
        console.print(section("Unknown", [Text(entry.title) for entry in best.unknown]))
    lost = {entry.number for entry in record.unknown if entry.lost == "proof"}
    fallen = [proof for proof in record.proofs if not proof.passed and proof.number not in lost]
    if failed := [f"probe {proof.number}: {proof.why}" for proof in fallen]:
        console.print(section("Proofs that did not hold", failed))
    _print_next(what_next(run.paths, best), console)


def _search(spec: RunSpec, record: Record, space: Space) -> RenderableType:
    """Return how candidates were come to: the path through the graph, as far as it was walked, and what was beside."""
    path = path_lines(record.path, space, record.history, spec.allow)
    walked = section("Path through the graph", path)
    if spec.strategy == "graph" or (path and record.searched and record.searched.reason == "exhausted"):
        return walked
    rungs = len({trial.candidate.rung() for trial in record.history})
    counts = f"{format_counted(len(record.history), 'probe')} of {format_counted(rungs, 'rung')}"
    over = f": {record.searched.why}" if record.searched else ""
    searched = section(f"Search by strategy {spec.strategy}", [f"{counts}{over}"])
    return Group(walked, searched) if path else searched


def _print_next(lines: list[str], console: Console, title: str = "Next") -> None:
    """Print lines that a terminal may fold, and nobody else: a command that is broken in two cannot be pasted."""
    console.print(Text(f"\n{title}", style="bold"))
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)


def _trials(record: Record, context: SearchContext) -> list[dict[str, Any]]:
    """Return each probe as it measured, its interval with the drift between the run's measurements."""
    drift = drift_of(record.history, (*record.rematches, *record.proofs), context)
    return [_trial(trial, context, drift) for trial in record.history]


def _trial(trial: Trial, context: SearchContext, drift: Drift) -> dict[str, Any]:
    entry = {
        **trial.model_dump(mode="json"), "verdict": verdict(trial.outcome, context),
        "prediction_error": trial.error(), "time_prediction_error": trial.time_error(),
    }  # fmt: skip
    if not isinstance(trial.outcome, Ok) or not context.batches(trial.candidate).allows(
        trial.candidate.micro_batch
    ):
        return entry
    if (bound := bound_of(trial, context, drift)) is not None:
        entry["seconds_per_global_step_at_least"] = bound.seconds
        entry["tokens_per_second_at_most"] = bound.tokens_per_second
    else:
        found = score(trial, context, drift)
        entry["tokens_per_second"] = found.tokens_per_second
        entry["tokens_per_second_interval"] = found.interval
    return entry


def _print_without_winner(run: Reported, console: Console) -> None:
    paths, record = run.paths, run.record
    if record.decided is not None and (causes := record.decided.causes):
        lines = [
            f"{title_of(cause.candidate)}, micro-batch {cause.candidate.micro_batch}: {cause.why}"
            for cause in causes
        ]
        console.print(section("How each rung ended", [Text(line) for line in lines]))
    elif said := failures(record.history):
        console.print(section("What was refused", [Text(line) for line in said]))
    if record.decided is not None:
        console.print(section("No winner", [Text(record.decided.why)]))
        if run.context is not None and (offers := offer_lines(record.decided.offers, run.context)):
            console.print(section("By consent alone", [Text(line) for line in offers]))
    elif (process := holder(paths.lock)) is not None:
        lines = [f"process {process} works on this run: {under_way(record)}"]
        _print_next(
            [*lines, f"it is followed where it was started; stop it with: kill -INT {process}"],
            console,
            "Running",
        )
    else:
        _print_next(["go on with:", command("resume", paths.root)], console, "Not finished")


def _state(paths: RunPaths, record: Record) -> dict[str, Any]:
    """Return whether a run is decided, running now (and what it does, in which process) or was interrupted."""
    if record.decided is not None:
        return {"state": "decided"}
    process = holder(paths.lock)
    if process is None:
        return {"state": "interrupted"}
    return {"state": "running", "process": process, "under_way": under_way(record)}
