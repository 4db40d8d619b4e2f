"""Estimates for people: one candidate in full, or every rung in a table."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.accumulation import ASSUMED_STEPS
from autotune.estimate import Estimate, Unpriced
from autotune.estimation import Answer
from autotune.report.wording import PHASES
from autotune.units import format_bytes, format_count, format_counted

BANNER = "predicted, not measured"


def estimates_document(answer: Answer) -> dict[str, Any]:
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


def accumulated(answer: Answer) -> str:
    """Return how many micro-steps estimates assume for a global step: `8 micro-steps a global step`."""
    steps = [rung.estimate.accumulation_steps for rung in answer.priced]
    usual = max(steps, default=_usual_steps(answer))
    others = "" if len(set(steps)) < 2 else " (1 with the optimizer step inside backward)"
    return f"{format_counted(usual, 'micro-step')} a global step{others}"


def _usual_steps(answer: Answer) -> int:
    return answer.question.accumulation_steps or ASSUMED_STEPS


def print_estimates(answer: Answer, console: Console) -> None:
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
    for rung in answer.rungs:
        if isinstance(rung, Unpriced):
            console.print(
                Text(f"{rung.candidate.title()} cannot be predicted: {rung.reason}", style="yellow")
            )
    if answer.priced:
        console.print(Text("\nSpeed is a rough upper bound; probes measure it.", style="dim"))


def _table(estimates: list[Estimate], micro_batch: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("rung")
    for column in (
        f"peak at\nmicro-batch {micro_batch}", "para-\nmeters", "gra-\ndients", "optimizer\nstate",
        "acti-\nvations", "host", "largest\nmicro-batch", "tokens/s\nthere",
    ):  # fmt: skip
        table.add_column(column, justify="right", no_wrap=True)
    for entry in estimates:
        parts = entry.breakdown
        style = "green" if entry.fits else ("yellow" if entry.largest_micro_batch else "red")
        table.add_row(
            entry.candidate.title(),
            Text(format_bytes(entry.device_peak_bytes), style=style),
            *(
                format_bytes(size) if size else "-"
                for size in (
                    parts.parameters,
                    parts.gradients,
                    parts.optimizer_state,
                    parts.activations,
                    entry.host_peak_bytes,
                )
            ),
            str(entry.largest_micro_batch or "none fits"),
            _speed(entry.largest_tokens_per_second),
        )
    return table


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
        ("configuration", f"{entry.candidate.title()}, {entry.candidate.optimizer}"),
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
