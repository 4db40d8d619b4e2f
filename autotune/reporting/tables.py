"""The parts that terminal output is made of: trials, path, winner, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.outcome import Drift, Ok
from autotune.reporting.columns import Cell, Column, FittingTable
from autotune.run.best import Best
from autotune.run.failure import holes
from autotune.search.context import SearchContext
from autotune.search.path import Step
from autotune.search.selection import score
from autotune.search.space import Space
from autotune.search.wording import REASONS, SHOWN, detail, rejected, verdict
from autotune.specs import DeviceSpec
from autotune.techniques.families import title as title_of
from autotune.trial import History, Trial
from autotune.units import format_bytes, format_count, format_duration

_STYLES = {"ok": "green", "oom": "red", "unsupported": "yellow"}
_BAR = 10
RANKS_SHOWN = 8
"""Ranks whose peaks are shown one by one."""


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
        if (speed := speed_cell(trial, context)) != "-":
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
    """Return tokens per second at the global batch, where the micro-batch can make it up."""
    if not isinstance(trial.outcome, Ok):
        return "-"
    if not context.batches(trial.candidate).allows(trial.candidate.micro_batch):
        return "-"
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
    if not isinstance(outcome, Ok) or outcome.communication is None or not batches.allows(size):
        return "-"
    steps = batches.accumulation(size).steps
    return f"{outcome.communication.global_step(steps) / outcome.timing.global_step(steps):.0%}"


def path_lines(path: Iterable[Step], space: Space, history: History = ()) -> list[str]:
    """Return the path through the graph, one node a line; `history` tells what stands behind an edge."""
    lines = []
    trials = {trial.candidate: trial for trial in history}
    for step in path:
        node = space.graph.nodes[step.node]
        target = node.target(step.edge)
        after = space.graph.nodes[target].title if target in space.graph.nodes else "choose"
        grown = "up to " if node.grow is not None else ""
        at = f"{grown}micro-batch {step.candidate.micro_batch}"
        how = _way(step, trials.get(step.candidate)) if node.grow is None else _grown(step, history)
        lines.append(f"{node.title} ({at}): {how} -> {after}")
    return lines


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


def winner_panel(best: Best) -> RenderableType:
    """Return the winner: configuration, accumulation written out, memory and speed with their evidence."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, value in winner_rows(best):
        grid.add_row(name, value)
    return grid


def winner_rows(best: Best) -> list[tuple[str, str]]:
    """Return the facts about a winner as (name, text)."""
    memory, accumulation = best.memory, best.accumulation
    left = memory.budget - memory.peak()
    batch = f"{accumulation.equation()}  (tokens: micro-batch x devices x accumulation steps)"
    if accumulation.difference:
        more, target = format_count(accumulation.difference), format_count(accumulation.target)
        batch += f"; {more} more than the {target} asked for"
    rows = [
        ("configuration", f"{title_of(best.candidate)}, {best.candidate.optimizer}"),
        *([("devices", f"{best.gpus} in {best.nodes} nodes")] if best.nodes > 1 else []),
        (
            "micro-batch",
            f"{best.candidate.micro_batch} x {format_count(accumulation.tokens_per_sample)} tokens",
        ),
        ("accumulation", f"{accumulation.steps} step{'s' * (accumulation.steps > 1)}"),
        ("global batch", batch),
        (
            "memory",
            f"{format_bytes(memory.peak())} of {format_bytes(memory.budget)} at the peak, {format_bytes(left)} free "
            f"({left / memory.budget:.1%}); tensors {format_bytes(memory.allocated)}",
        ),
        (
            "speed",
            f"{format_count(best.tokens_per_second)} ± {format_count(best.tokens_per_second_interval)} tokens/s, "
            f"{format_duration(best.seconds_per_global_step)} a global step"
            + (f", MFU {best.mfu:.1%}" if best.mfu is not None else ""),
        ),
        *([("attention", _attention(best))] if best.attention or best.attention_kernels else []),
        *([("choice", said)] if (said := choice(best)) else []),
        ("evidence", best.evidence),
    ]
    if best.communication is not None:
        seconds = best.communication.global_step(accumulation.steps)
        share = f"{format_duration(seconds)} of a global step ({seconds / best.seconds_per_global_step:.0%}), computing"
        rows.insert(-1, ("communication", f"{share} meanwhile not taken off"))
    if (wait := best.timing.data_wait) is not None:
        waiting = f"{wait.mean / max(best.timing.last_micro_step.mean, 1e-9):.0%}"
        said = f"{format_duration(wait.mean)} of a micro-step until its batch is there ({waiting})"
        rows.insert(-1, ("data", said))
    if by_rank := memory.by_rank:
        at = next(index for index, (name, _) in enumerate(rows) if name == "memory") + 1
        rows.insert(at, ("of each rank", _peaks(by_rank)))
    if best.proof is not None:
        rows.append(("proof", best.proof.why))
    elif best.evaluation_micro_batch is not None:
        rows.append(
            ("evaluation", f"micro-batch {format_count(best.evaluation_micro_batch)} should fit (predicted)")
        )
    if best.unknown:
        rows.append(("unknown", holes(best.unknown)))
    rows += [("note", note) for note in best.notes]
    return rows


def _attention(best: Best) -> str:
    kernels = " and ".join(best.attention_kernels)
    if not kernels:
        return best.attention or ""
    kernels += " kernels" if len(best.attention_kernels) > 1 else " kernel"
    return f"{best.attention or 'sdpa'}, torch's {kernels} {'assumed' if best.evidence == 'predicted' else 'ran'}"


def _peaks(by_rank: tuple[int, ...]) -> str:
    """Return the peaks of all ranks, or of many ranks the range."""
    if len(by_rank) <= RANKS_SHOWN:
        return ", ".join(format_bytes(peak) for peak in by_rank)
    return f"{format_bytes(min(by_rank))} to {format_bytes(max(by_rank))}"


def rejected_lines(
    history: History, context: SearchContext, winner: Trial, drift: Drift | None = None
) -> list[str]:
    """Return what was rejected, and why."""
    return [f"{rung}: {why}" for rung, why in rejected(history, context, winner, drift)]


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


def choice(best: Best) -> str:
    """Return what made a winner one of several that measured speed does not tell apart; empty where speed alone did."""
    if not best.alternatives:
        return ""
    named = [
        f"{title_of(other.candidate)}, micro-batch {other.candidate.micro_batch} "
        f"({format_count(other.tokens_per_second)} ± {format_count(other.tokens_per_second_interval)} tokens/s)"
        for other in best.alternatives[:SHOWN]
    ]
    if (more := len(best.alternatives) - SHOWN) > 0:
        named.append(f"{more} more")
    return f"not distinguishable by speed from {'; '.join(named)}: chosen for {REASONS[best.chosen_by]}"
