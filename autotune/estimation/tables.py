"""Estimates for people: one candidate in full, or every rung in a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.accumulation import ASSUMED_STEPS
from autotune.estimation.pricing import Estimate, Note, Unpriced
from autotune.estimation.request import EstimateReport
from autotune.reporting.columns import Cell, Column, FittingTable
from autotune.search.wording import PHASES
from autotune.techniques.families import title as title_of
from autotune.units import format_bytes, format_count, format_counted

BANNER = "predicted, not measured"


def estimates_document(answer: EstimateReport) -> dict[str, Any]:
    """Return an answer as plain data: one estimate where one candidate was asked for, else all rungs."""
    entries = [
        rung.model_dump(mode="json") if isinstance(rung, Unpriced) else rung.estimate.model_dump(mode="json")
        for rung in answer.rungs
    ]
    asked = {
        "model": answer.model.name, "gpu": answer.hardware.id, "gpus": answer.question.gpus,
        "nodes": answer.question.nodes,
        "seq_len": answer.seq_len, "accumulation_steps": _usual_steps(answer),
        "headroom": answer.question.headroom, "evidence": "predicted",
    }  # fmt: skip
    return {**asked, **entries[0]} if answer.question.candidate else {**asked, "rungs": entries}


def accumulated(answer: EstimateReport) -> str:
    """Return how many micro-steps estimates assume for a global step: `8 micro-steps a global step`."""
    steps = [rung.estimate.accumulation_steps for rung in answer.priced]
    usual = max(steps, default=_usual_steps(answer))
    others = "" if len(set(steps)) < 2 else " (1 with the optimizer step inside backward)"
    return f"{format_counted(usual, 'micro-step')} a global step{others}"


def _usual_steps(answer: EstimateReport) -> int:
    return answer.question.accumulation_steps or ASSUMED_STEPS


def print_estimates(answer: EstimateReport, console: Console) -> None:
    """Print what was asked, under the words that say where the numbers come from."""
    question, hardware = answer.question, answer.hardware
    console.print(Text(BANNER, style="bold yellow"))
    console.print(
        Text.assemble(
            (answer.model.name, "bold"),
            f" on {question.devices}",
            (hardware.id, "bold"),
            f": {format_bytes(hardware.usable_bytes())} each, of which {question.headroom:.0%} stay free; "
            f"sequences of {format_count(answer.seq_len)} tokens; {accumulated(answer)}"
            f"{'' if question.accumulation_steps else ' (--accumulation-steps)'}\n",
        )
    )
    if question.candidate and answer.priced:
        console.print(_in_full(answer.priced[0].estimate))
    elif answer.priced:
        console.print(_table([rung.estimate for rung in answer.priced], question.micro_batch))
        for entry, note in _most_noted(answer):
            console.print(Text(f"{title_of(entry.candidate)}: {note.text}", style="yellow"))
    for rung in answer.rungs:
        if isinstance(rung, Unpriced):
            console.print(
                Text(f"{title_of(rung.candidate)} cannot be predicted: {rung.reason}", style="yellow")
            )
    if answer.priced:
        console.print(Text("\nSpeed is a rough upper bound; probes measure it.", style="dim"))


def _most_noted(answer: EstimateReport) -> list[tuple[Estimate, Note]]:
    """Return each kind of note once, with the rung that it costs most."""
    noted = [(rung.estimate, note) for rung in answer.priced for note in rung.estimate.notes]
    noted.sort(key=lambda pair: pair[1].bytes)
    return list({note.unfused: (entry, note) for entry, note in noted}.values())


def _table(estimates: list[Estimate], micro_batch: int) -> FittingTable:
    def size(take: Callable[[Estimate], int]) -> tuple[str, ...]:
        return tuple(format_bytes(taken) if (taken := take(entry)) else "-" for entry in estimates)

    def peak(entry: Estimate) -> Text:
        style = "green" if entry.fits else ("yellow" if entry.largest_micro_batch else "red")
        return Text(format_bytes(entry.device_peak_bytes), style=style)

    def column(title: str, cells: Sequence[Cell], leaves: int = 0) -> Column:
        return Column(title, cells, leaves=leaves, justify="right")

    return FittingTable([
        Column("rung", [title_of(entry.candidate) for entry in estimates], least=20),
        column(f"peak at\nmicro-batch {micro_batch}", [peak(entry) for entry in estimates]),
        column("para-\nmeters", size(lambda entry: entry.breakdown.parameters), leaves=5),
        column("gra-\ndients", size(lambda entry: entry.breakdown.gradients), leaves=4),
        column("optimizer\nstate", size(lambda entry: entry.breakdown.optimizer_state), leaves=3),
        column("acti-\nvations", size(lambda entry: entry.breakdown.activations), leaves=2),
        column("host", size(lambda entry: entry.host_peak_bytes), leaves=1),
        column("largest\nmicro-batch", [str(entry.largest_micro_batch or "none fits") for entry in estimates]),
        column("tokens/s\nthere", [_speed(entry.largest_tokens_per_second) for entry in estimates]),
    ])  # fmt: skip


def _in_full(entry: Estimate) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    parts = entry.breakdown
    low, high = entry.interval
    holders = ", ".join(
        f"{module} ({what.replace('_', ' ')} {format_bytes(size)})"
        for module, what, size in entry.holders[:4]
    )
    rows = [
        ("configuration", f"{title_of(entry.candidate)}, {entry.candidate.optimizer}"),
        ("micro-batch", str(entry.micro_batch)),
        (
            "device",
            f"{format_bytes(entry.device_peak_bytes)} ({format_bytes(low)} to {format_bytes(high)}) of "
            f"{format_bytes(entry.usable_bytes)}: {'fits' if entry.fits else 'does not fit'}",
        ),
        ("reserved", f"{format_bytes(entry.reserved_peak_bytes)} by the caching allocator"),
        ("allocated", f"{format_bytes(entry.allocated_peak_bytes)} of tensors, most in {PHASES[entry.phase]}"),
        (
            "held by",
            f"parameters {format_bytes(parts.parameters)}, gradients {format_bytes(parts.gradients)}, optimizer state "
            f"{format_bytes(parts.optimizer_state)}, activations {format_bytes(parts.activations)}, other "
            f"{format_bytes(parts.other)}",
        ),
        ("largest there", holders),
        ("host", format_bytes(entry.host_peak_bytes)),
        *([("disk", format_bytes(entry.disk_bytes))] if entry.disk_bytes else []),
        ("largest micro-batch", str(entry.largest_micro_batch or "none fits")),
        *(() if entry.evaluation_micro_batch is None else (("for evaluation", str(entry.evaluation_micro_batch)),)),
        (
            "speed",
            f"{_speed(entry.tokens_per_second)} tokens/s; {_speed(entry.largest_tokens_per_second)} at the largest",
        ),
        *(("note", note.text) for note in entry.notes),
        ("took", f"{_traced(entry)}, price {entry.price_seconds * 1000:.0f} ms"),
    ]  # fmt: skip
    for name, value in rows:
        table.add_row(name, value)
    return table


def _traced(entry: Estimate) -> str:
    if entry.trace_cached:
        return f"trace cached ({entry.trace_seconds:.1f} s when it was made)"
    return f"trace {entry.trace_seconds:.1f} s"


def _speed(tokens_per_second: float | None) -> str:
    return "-" if tokens_per_second is None else format_count(tokens_per_second)
