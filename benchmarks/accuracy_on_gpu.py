"""Part 3 of `memory_accuracy.py`: predictions against what `gpu_ladder.py` measured on an NVIDIA GPU.

The ladder's recorded results are read, so that this part runs anywhere once they exist.

Targets: of the allocated peak a median error of at most 1% and none above 3%, of the reserved peak a median of at
most 3%.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.candidate import Candidate
from autotune.devices.hardware import lookup
from autotune.memory.reserved import allocator_usage
from autotune.models.resolve import resolve
from autotune.probe.protocol import ProbeRequest
from autotune.techniques.families import title as title_of
from autotune.timeline.timeline import Timeline
from autotune.units import GIB, MIB
from benchmarks.recording import RESULTS
from benchmarks.verdict import unmeasured

LIMITS = {"allocated": (0.01, 0.03), "reserved": (0.03, None)}
"""Median and worst relative error that are the targets."""


def trace_alone(probe: ProbeRequest) -> str:
    """Trace in this process, which must be fresh; return the timeline as text, or `!` and why there is none."""
    from autotune.worker.errors import CannotTrace
    from autotune.worker.tracing.trace import trace

    try:
        return trace(probe).dump()
    except CannotTrace as error:
        return f"! {error}"


def compare(path: Path, pool: Any) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a row for every probe of a ladder that trained, and the rungs without a trace with the reason."""
    from benchmarks.gpu_ladder import rungs

    ladder = json.loads(path.read_text(encoding="utf-8"))
    model = path.stem.removeprefix("gpu_ladder-")
    device = ladder["device"]
    hardware = lookup(device["name"])
    by_title = {title_of(rung): rung for rung in rungs()}
    timelines: dict[str, Timeline | None] = {}
    reasons: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    for row in ladder["rows"]:
        if row["verdict"] != "ok":
            continue
        title = row["rung"]
        rung = by_title.get(title)
        if rung is None:
            reasons[title] = "this version has no such rung"
            continue
        if title not in timelines:
            text = pool.apply(trace_alone, (request(model, ladder["seq_len"], rung),))
            timelines[title] = None if text.startswith("!") else Timeline.parse(text)
            if text.startswith("!"):
                reasons[title] = text[2:]
        timeline = timelines[title]
        if timeline is None:
            continue
        usage = allocator_usage(timeline,
            row["micro_batch"], accumulating=ladder["accumulation_steps"] > 1,
            expandable_segments=rung.expandable_segments, device_memory=device["total"],
            blas_workspace=hardware.cublas_bytes() if hardware else 0,
        )  # fmt: skip
        rows.append(
            {
                "model": model, "gpu": device.get("name"), "rung": title, "micro_batch": row["micro_batch"],
                "allocated": row["allocated"], "predicted_allocated": usage.allocated_peak,
                "reserved": row["reserved"], "predicted_reserved": usage.reserved_peak,
                "outside": row["device_peak"] - row["reserved"],
            }
        )  # fmt: skip
    return rows, reasons


def request(model: str, seq_len: int, rung: Candidate) -> ProbeRequest:
    """Return the request that traces a rung for a GPU."""
    return ProbeRequest(
        kind="train", model=resolve(model, base=Path.cwd()), candidate=rung, seq_len=seq_len, accumulation_steps=2,
        device="cuda:0", budget=1 << 50, seed=0, sample_seconds=1, sample_steps=2, folder=".",
    )  # fmt: skip


def run(console: Console) -> tuple[list[dict[str, Any]], list[str]]:
    """Compare all recorded ladders, print the table, and return its rows and the targets that are missed."""
    paths = sorted(RESULTS.glob("gpu_ladder-*.json"))
    if not paths:
        raise unmeasured(
            "memory_accuracy",
            "part 3 compares with benchmarks/results/gpu_ladder-*.json, and there is none; run "
            "`python -m benchmarks.gpu_ladder` on a machine with an NVIDIA GPU first",
        )
    rows: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for path in paths:
            found, reasons = compare(path, pool)
            rows += found
            for title, reason in reasons.items():
                console.print(f"{path.stem}, {title}: not traced: {reason}")
    table = Table("model", "rung", "micro-batch", "allocated GiB", "error", "reserved GiB", "error",
                  "outside MiB", box=None)  # fmt: skip
    for row in rows:
        table.add_row(
            row["model"], row["rung"], str(row["micro_batch"]), f"{row['allocated'] / GIB:.3f}",
            f"{error(row, 'allocated'):+.2%}", f"{row['reserved'] / GIB:.3f}", f"{error(row, 'reserved'):+.2%}",
            f"{row['outside'] / MIB:.0f}",
        )  # fmt: skip
    console.print(table)
    missed = [] if rows else ["at least one recorded probe is compared"]
    for key, (median_limit, worst_limit) in LIMITS.items():
        errors = [abs(error(row, key)) for row in rows]
        if not errors:
            continue
        median, worst = statistics.median(errors), max(errors)
        console.print(f"{key}: {len(errors)} rows, median error {median:.2%}, worst {worst:.2%}")
        if median > median_limit:
            missed.append(f"{key}: a median error of at most {median_limit:.0%}: {median:.2%}")
        if worst_limit is not None and worst > worst_limit:
            missed.append(f"{key}: no error above {worst_limit:.0%}: {worst:.2%}")
    return rows, missed


def error(row: dict[str, Any], key: str) -> float:
    """Return the relative error of a prediction."""
    return float(row[f"predicted_{key}"] / row[key] - 1)
