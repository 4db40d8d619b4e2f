"""The parts that terminal output is made of: trials, path, winner, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.outcome import Drift, Ok
from autotune.reporting.columns import Cell, Column, FittingTable
from autotune.search.context import SearchContext
from autotune.search.incumbent import bound_of
from autotune.search.path import Step
from autotune.search.selection import Pairs, score
from autotune.search.space import Space
from autotune.search.wording import detail, rejected, verdict
from autotune.specs import DeviceSpec
from autotune.techniques.consent import changing
from autotune.techniques.families import title as title_of
from autotune.trial import History, Trial
from autotune.units import format_bytes, format_count, format_duration

_STYLES = {"ok": "green", "oom": "red", "unsupported": "yellow"}
_BAR = 10


def trial_table(history: History, context: SearchContext) -> FittingTable:
    """Return all trials, one a row."""
    foreseen = any(trial.prediction for trial in history)
    heard = any(isinstance(trial.outcome, Ok) and trial.outcome.communication for trial in history)

    def cells(make: Callable[[Trial], Cell]) -> tuple[Cell, ...]:
        return tuple(make(trial) for trial in history)

    columns = [
        Column("#", cells(lambda trial: str(trial.number)), justify="right", style="dim"),
        Column("rung", cells(lambda trial: title_of(trial.candidate)), least=20),
        Column("micro-\nbatch", cells(lambda trial: format_count(trial.candidate.micro_batch)), justify="right"),
        Column("verdict", cells(partial(verdict_cell, context=context)), least=13),
        Column("", cells(partial(_bar, context=context)), leaves=5),
        Column(f"peak of\n{format_bytes(context.budget)}", cells(partial(peak_cell, context=context)), justify="right"),
        Column("predicted", cells(prediction_cell), leaves=2, style="dim"),
        Column("tokens/s", cells(partial(speed_cell, context=context)), justify="right"),
        Column("commu-\nnication", cells(partial(communication_cell, context=context)), leaves=1, justify="right"),
        Column("tried because", cells(partial(why_cell, space=context.space)), leaves=3, least=24, style="dim"),
    ]  # fmt: skip
    absent = {"predicted": not foreseen, "commu-\nnication": not heard}
    return FittingTable([column for column in columns if not absent.get(column.title)])


def trial_line(trial: Trial, context: SearchContext) -> str:
    """Return a finished trial in one line, for a log."""
    candidate = trial.candidate
    line = f"probe {trial.number}: {title_of(candidate)}, micro-batch {format_count(candidate.micro_batch)}: "
    line += verdict(trial.outcome, context)
    if isinstance(trial.outcome, Ok):
        line += f", peak {peak_cell(trial, context)}"
        if (bound := bound_of(trial, context)) is not None:
            line += f", at most {format_count(bound.tokens_per_second)} tokens/s (at least "
            line += f"{format_duration(bound.seconds)} a global step, so it ended early)"
        elif (speed := speed_cell(trial, context)) != "-":
            line += f", {speed} tokens/s"
    return line


def verdict_cell(trial: Trial, context: SearchContext) -> Text:
    """Return the verdict in a few words, and in the colour of what it means."""
    outcome = trial.outcome
    style = _STYLES.get(outcome.kind, "magenta")
    if isinstance(outcome, Ok) and not context.fits(outcome.memory):
        style = "yellow"
    return Text(verdict(outcome, context), style=style)


def peak_cell(trial: Trial, context: SearchContext) -> str:
    """Return the peak, and its share of the budget."""
    if not isinstance(trial.outcome, Ok):
        return "-"
    peak = trial.outcome.memory.peak()
    return f"{format_bytes(peak)} {peak / context.budget:4.0%}"


def speed_cell(trial: Trial, context: SearchContext) -> str:
    """Return tokens per second at the global batch, where the micro-batch can make it up; at most, of a bound."""
    if not isinstance(trial.outcome, Ok):
        return "-"
    if not context.batches(trial.candidate).allows(trial.candidate.micro_batch):
        return "-"
    if (bound := bound_of(trial, context)) is not None:
        return f"≤ {format_count(bound.tokens_per_second)}"
    return format_count(score(trial, context).tokens_per_second)


def why_cell(trial: Trial, space: Space) -> str:
    """Return why the candidate was tried."""
    return trial.why if trial.node in space.graph.nodes else f"{trial.node}: {trial.why}"


def prediction_cell(trial: Trial) -> str:
    """Return the predicted peak, and by how much it was off where the probe measured one."""
    if trial.prediction is None:
        return "-"
    error = trial.error()
    return format_bytes(trial.prediction.peak) + (f" {error:+.1%}" if error is not None else "")


def communication_cell(trial: Trial, context: SearchContext) -> str:
    """Return the share of a global step in which ranks communicated."""
    outcome, size = trial.outcome, trial.candidate.micro_batch
    batches = context.batches(trial.candidate)
    if not isinstance(outcome, Ok) or outcome.timing is None:
        return "-"
    if outcome.communication is None or not batches.allows(size):
        return "-"
    steps = batches.accumulation(size).steps
    assert outcome.timing is not None
    return f"{outcome.communication.global_step(steps) / outcome.timing.global_step(steps):.0%}"


class PathStep(NamedTuple):
    """One node of the path through the graph, in words."""

    title: str
    at: str
    """At which micro-batch, and with what of the values that were allowed."""
    how: str
    """How it was left."""
    after: str
    """Where to."""


def path_steps(
    path: Iterable[Step], space: Space, history: History = (), allowed: Collection[str] = ()
) -> list[PathStep]:
    """Return the path through the graph; `history` tells what stands behind an edge.

    A node is told with what of the `allowed` it was walked with, and with the precision that took the place of its own.
    """
    found = []
    trials = {trial.candidate: trial for trial in history}
    for step in path:
        node = space.graph.nodes[step.node]
        target = node.target(step.edge)
        after = space.graph.nodes[target].title if target in space.graph.nodes else "choose"
        grown = "up to " if node.grow is not None else ""
        by_consent = [one.name for one in changing(step.candidate) if one.name in allowed]
        precision = step.candidate.precision
        own = (node.set or {}).get("precision", precision)
        native = [f"in {precision}"] if precision != own and precision not in by_consent else []
        at = ", ".join([*native, *by_consent, f"{grown}micro-batch {step.candidate.micro_batch}"])
        how = _way(step, trials.get(step.candidate)) if node.grow is None else _grown(step, history)
        found.append(PathStep(node.title, at, how, after))
    return found


def path_lines(
    path: Iterable[Step], space: Space, history: History = (), allowed: Collection[str] = ()
) -> list[str]:
    """Return the same as lines of text, one a node."""
    steps = path_steps(path, space, history, allowed)
    return [f"{step.title} ({step.at}): {step.how} -> {step.after}" for step in steps]


def _grown(step: Step, history: History) -> str:
    """Return in words why growth ended."""
    largest = step.candidate
    beyond = [
        t
        for t in history
        if t.candidate.rung() == largest.rung() and t.candidate.micro_batch > largest.micro_batch
    ]
    if step.edge != "limit":
        why = "no larger one fits" if step.edge == "oom" else step.edge
    else:
        why = "larger ones did not train" if beyond else "the global batch has no use for more"
    return why + (" (predicted)" if step.evidence == "predicted" else "")


def _way(step: Step, trial: Trial | None) -> str:
    """Return in words how a node was left. The edge of memory is taken too where only the headroom lacked."""
    said = "predicted " if step.evidence == "predicted" else ""
    if step.edge == "ok":
        return "predicted to fit" if said else "fits"
    if step.edge != "oom" and not step.edge.startswith("oom_"):
        return said + step.edge.replace("_", " ")
    phase = f" in {step.edge.removeprefix('oom_')}" if step.edge != "oom" else ""
    if said:
        return f"predicted not to fit{phase}"
    without_headroom = trial is not None and isinstance(trial.outcome, Ok)
    return "fits without headroom" if without_headroom else f"OOM{phase}"


def not_measured(device: DeviceSpec) -> RenderableType:
    """Return what stands above every result of a simulated or replayed device, with why one is simulated unasked."""
    if device.kind == "replay":
        return Text(f"\nreplayed, not measured now: from {device.file}", style="bold yellow")
    text = Text(
        "\npredicted, not measured: nothing was trained, the device is simulated", style="bold yellow"
    )
    return text.append(f"\n{device.because}", style="not bold") if device.because else text


def rejected_lines(
    history: History,
    context: SearchContext,
    winner: Trial,
    drift: Drift | None = None,
    pairs: Pairs | None = None,
) -> list[str]:
    """Return what was rejected, and why."""
    return [f"{rung}: {why}" for rung, why in rejected(history, context, winner, drift, pairs)]


def section(title: str, lines: Iterable[RenderableType]) -> RenderableType:
    """Return a titled block."""
    return Group(Text(f"\n{title}", style="bold"), *(_indented(line) for line in lines))


def failures(history: History) -> list[str]:
    """Return every trial's own words where it went wrong, for the report of a run without a winner."""
    return [f"probe {trial.number}: {detail(trial.outcome)}" for trial in history if detail(trial.outcome)]


def _indented(line: RenderableType) -> RenderableType:
    from rich.padding import Padding

    return Padding(line, (0, 0, 0, 2))


def _bar(trial: Trial, context: SearchContext) -> Text:
    """Draw the peak's share of the budget."""
    if not isinstance(trial.outcome, Ok):
        return Text()
    peak = trial.outcome.memory.peak()
    full = round(min(1.0, peak / context.budget) * _BAR)
    bar = Text("━" * full, style="green" if peak <= context.usable else "yellow")
    return bar.append("━" * (_BAR - full), style="bright_black")
