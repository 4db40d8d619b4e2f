"""Part 2 of `memory_accuracy.py`: predictions against runs that others published (`data/published_runs.csv`).

Two kinds of rows are compared. Runs with a published peak on one device are traced, with the publisher's model as
far as transformers has it. Runs without a peak, sharded or not, only say that they fitted: for them the closed form
must not say otherwise. Every other row is listed with what is missing to express it.
"""

from __future__ import annotations

import csv
import multiprocessing
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.candidate import Candidate
from autotune.memory.formula import Architecture, Setup, estimate
from autotune.memory.timeline import Timeline
from autotune.probe.protocol import ProbeRequest
from autotune.specs import ModelSpec
from autotune.units import GIB
from benchmarks.accuracy_on_gpu import trace_alone

DATA = Path(__file__).parent / "data" / "published_runs.csv"
LIMIT = 0.05
GPU_GIB = {"a100_40gb": 39.5, "a100_80gb": 79.2, "h100_80gb": 79.1, "A100-80GB": 79.2, "A100-40GB": 39.5,
           "H100-80GB": 79.1}  # fmt: skip
"""What torch finds of the memory (hardware.yaml), by the names of the table."""

BERT_LARGE = "benchmarks.published_models:bert_large"
CONTEXT = 1.3 * 1000**3
"""What the publisher states for the CUDA context of the V100 rows, which its peaks include."""
TRACED: dict[str, tuple[str, dict[str, Any], bool]] = {
    "308": (BERT_LARGE, {"precision": "fp32"}, False),
    "310": (BERT_LARGE, {"precision": "fp32", "checkpointing": "full"}, True),
}
"""Rows of one device with a peak that a candidate expresses: function, candidate, accumulating."""


def traced(row: dict[str, str], pool: Any) -> dict[str, Any] | str:
    """Return measured and predicted bytes of one published row, or why it was not traced."""
    function, fields, accumulating = TRACED[row["id"]]
    micro_batch = int(row["micro_batch"])
    spec = ModelSpec(name=function, source="function", path=str(Path(__file__).resolve().parent.parent))
    probe = ProbeRequest(
        kind="train", model=spec, candidate=Candidate(**fields), seq_len=int(row["seq_len"]), accumulation_steps=2,
        device="cuda:0", budget=1 << 50, seed=0, sample_seconds=1, sample_steps=2, folder=".",
    )  # fmt: skip
    text = pool.apply(trace_alone, (probe,))
    if text.startswith("!"):
        return str(text[2:])
    usage = Timeline.parse(text).usage(micro_batch, accumulating, blas_workspace=8_519_680)
    return {"measured": float(row["peak_mem_gib"]) * GIB, "predicted": usage.reserved_peak + CONTEXT}


def closed_form(row: dict[str, str]) -> float | None:
    """Return the closed form's bytes for a row that it expresses: MPT under FSDP, with its fused cross-entropy."""
    if not row["model"].startswith("MPT") or row["gpu"] not in GPU_GIB:
        return None
    if row["sharding"] not in {"FSDP1 FULL_SHARD", "FSDP1 SHARD_GRAD_OP"} or "fp8" in row["precision"]:
        return None
    if not all(row[key] for key in ("micro_batch", "seq_len", "world_size", "params")):
        return None
    hidden, heads = int(row["hidden"]), int(row["heads"])
    architecture = Architecture(
        layers=int(row["layers"]), hidden=hidden, heads=heads, kv_heads=heads, head_dim=hidden // heads,
        intermediate=4 * hidden, vocab=int(row["vocab"]), gated=False, tied=True,
    )  # fmt: skip
    setup = Setup(
        seq_len=int(row["seq_len"]), micro_batch=int(row["micro_batch"]), precision="autocast",
        sharding="zero3" if "FULL" in row["sharding"] else "zero2", world=int(row["world_size"]),
        checkpointing="full" if row["activation_checkpointing"] == "full" else "none",
        fused_loss=True, framework=GIB,
    )  # fmt: skip
    return estimate(architecture, setup).device


def missing(row: dict[str, str]) -> str:
    """Say what keeps a row from being compared."""
    if "LoRA" in row["optimizer"] or "adapter" in row["optimizer"]:
        return "adapters over frozen bf16 weights"
    if "Muon" in row["optimizer"]:
        return "the Muon optimizer and the publisher's own model"
    if any(mark in row["sharding"] for mark in ("TP", "PP", "CP", "EP")):
        return "tensor, pipeline, context or expert parallelism"
    if "8" in row["precision"].replace("bf16", "").replace("fp16", "") and "fp" in row["precision"].lower():
        return "8-bit floats"
    if "FSDP" in row["sharding"] or "ZeRO" in row["sharding"]:
        return (
            "a trace under sharding"
            if row["peak_mem_gib"]
            else "sharding of a model that is not a plain decoder"
        )
    return "the publisher's own model code"


def run(console: Console) -> tuple[list[dict[str, Any]], bool]:
    """Compare, print, and return the rows and whether the aims are met."""
    published = list(csv.DictReader(DATA.open(encoding="utf-8")))
    rows: list[dict[str, Any]] = []
    left: Counter[str] = Counter()
    names: dict[str, list[str]] = {}
    table = Table("row", "model", "gpu", "what", "measured GiB", "predicted GiB", "error", box=None)
    fitted = wrong = 0
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for row in published:
            if row["id"] in TRACED:
                found = traced(row, pool)
                if isinstance(found, str):
                    console.print(f"row {row['id']}: {found}")
                    continue
                error = found["predicted"] / found["measured"] - 1
                rows.append({"id": row["id"], "model": row["model"], **found, "error": error})
                sizes = (f"{found[key] / GIB:.2f}" for key in ("measured", "predicted"))
                table.add_row(
                    row["id"], row["model"], row["gpu"], "reserved and context", *sizes, f"{error:+.1%}"
                )
            elif not row["peak_mem_gib"] and (predicted := closed_form(row)) is not None:
                fitted += 1
                memory = GPU_GIB[row["gpu"]]
                if predicted / GIB > memory:
                    wrong += 1
                    table.add_row(row["id"], row["model"], row["gpu"], "fitted", f"< {memory:.1f}",
                                  f"{predicted / GIB:.2f}", "does not fit")  # fmt: skip
            else:
                reason = missing(row)
                left[reason] += 1
                names.setdefault(reason, []).append(f"{row['id']} {row['model']}")
    console.print(table)
    errors = [abs(row["error"]) for row in rows]
    if errors:
        console.print(f"{len(errors)} rows with a peak: median error {statistics.median(errors):.1%}")
    console.print(f"{fitted} rows that fitted: the closed form says otherwise of {wrong}")
    for reason, count in left.most_common():
        console.print(f"{count} rows not expressed for {reason}: {', '.join(names[reason])}", highlight=False)
    return rows, bool(errors) and statistics.median(errors) <= LIMIT and not wrong
