"""Part 2 of `memory_accuracy.py`: predictions against runs that others published (`data/published_runs.csv`).

Targets: the median error over the rows with a peak is at most 5%; all of them are traced; and of no run that fitted
does the closed form say otherwise.

Runs with a published peak are traced, with the publisher's model as its code computed it (`EXPRESSED`); what is known
of that code stands in `data/README.md`, with the source. Runs without a peak only say that they fitted: for them the
closed form must not say otherwise. Every other row is listed with what is missing to express it.
"""

from __future__ import annotations

import csv
import multiprocessing
import statistics
from collections import Counter
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

from rich.console import Console
from rich.table import Table

from autotune.candidate import Candidate
from autotune.memory.closed_form import Architecture, Setup, estimate
from autotune.memory.reserved import allocator_usage
from autotune.probe.protocol import ProbeRequest
from autotune.specs import ModelSpec
from autotune.timeline.timeline import Timeline
from autotune.units import GIB, MIB

DATA = Path(__file__).parent / "data" / "published_runs.csv"
LIMIT = 0.05
SMALLEST = "285"
"""The row that is traced soonest."""
GPU_GIB = {"a100_40gb": 39.5, "a100_80gb": 79.2, "h100_80gb": 79.1, "A100-80GB": 79.2, "A100-40GB": 39.5,
           "H100-80GB": 79.1}  # fmt: skip
"""What torch finds of the memory (hardware.yaml), by the names of the table."""
BLAS_WORKSPACE = 8_519_680
"""Of one cuBLAS handle before Hopper, since torch allocates it itself (1.12)."""
CONTEXT = 1343 * MIB
"""CUDA context of the V100 rows, which their peaks include, as their page states it."""


class Expressed(NamedTuple):
    """How a row with a peak is traced."""

    model: str
    """`bert-large`, `torchtitan`, or a model of `published_litgpt` and how it is tuned: `phi-1.5 lora`."""
    published: Literal["allocated", "reserved"]
    """What the publisher's number is the peak of."""
    fields: dict[str, str]
    """Of the candidate. What is bf16 from the start needs no casts, so its precision is `fp32`."""
    outside: int = 0
    """Bytes outside the allocator that are in the number."""
    keeps_gradients: bool = False
    """Gradients of one step live on through the next: accumulation, or zeroed instead of dropped (torch before 2.0)."""
    blas_workspace: int = BLAS_WORKSPACE


def _bert(**fields: str) -> Expressed:
    fields = {"precision": "fp32", **fields}
    return Expressed("bert-large", "reserved", fields, CONTEXT, keeps_gradients=True, blas_workspace=0)


def _adapters(name: str, tuning: str = "lora") -> Expressed:
    return Expressed(f"{name} {tuning}", "allocated", {"precision": "fp32"})


EXPRESSED: dict[str, Expressed] = {
    "216": Expressed("torchtitan", "reserved", {"sharding": "fsdp2"}, blas_workspace=32 * MIB),
    "285": _adapters("phi-1.5"),
    "287": _adapters("StableLM-Alpha-3B"),
    "289": _adapters("StableLM-Alpha-3B"),
    "291": _adapters("Llama-2-7B"),
    "293": _adapters("Llama-2-13B"),
    "307": _adapters("Llama-2-7B", "adapter_v2"),
    "308": _bert(),
    "310": _bert(checkpointing="full"),
}
"""Rows with a peak, by their number."""


def trace_published(row: Expressed, seq_len: int, ranks: int) -> str:
    """Trace a row's training in this process, which must be fresh; return it, or `!` and why there is none."""
    from autotune.worker.build import model_init
    from autotune.worker.built_model import BuiltModel
    from autotune.worker.errors import CannotTrace
    from autotune.worker.tracing.trace import trace
    from benchmarks import published_litgpt, published_models, published_titan

    def built(_spec: ModelSpec, _seq_len: int, device: Any, _precision: str) -> BuiltModel:
        name, _, tuning = row.model.partition(" ")
        with device:
            if tuning:
                model, batch = published_litgpt.build(name, "lora" if tuning == "lora" else "adapter_v2")
            else:
                made = {"bert-large": published_models.bert_large, "torchtitan": published_titan.build}
                model, batch = made[name]()
        return BuiltModel(model.train(), "custom", seq_len, batch)

    probe = ProbeRequest(
        kind="train", model=ModelSpec(name=row.model, source="function"),
        candidate=Candidate.model_validate(row.fields), seq_len=seq_len, accumulation_steps=2, device="cuda:0",
        budget=1 << 50, seed=0, sample_seconds=1, sample_steps=2, folder=".", world_size=ranks,
    )  # fmt: skip
    try:
        # Not through a user's function: some publishers' parameters are bf16, which autotune refuses of its users.
        with mock.patch.object(model_init, "build_model", built):
            return trace(probe).dump()
    except CannotTrace as error:
        return f"! {error}"


def traced(row: dict[str, str], pool: Any) -> dict[str, Any] | str:
    """Return measured and predicted bytes of one published row, or why it was not traced."""
    expressed = EXPRESSED[row["id"]]
    text = pool.apply(trace_published, (expressed, int(row["seq_len"]), int(row["world_size"])))
    if text.startswith("!"):
        return str(text[2:])
    usage = allocator_usage(
        Timeline.parse(text),
        int(row["micro_batch"]),
        expressed.keeps_gradients,
        blas_workspace=expressed.blas_workspace,
    )
    peak = usage.allocated_peak if expressed.published == "allocated" else usage.reserved_peak
    return {
        "published": expressed.published,
        "measured": float(row["peak_mem_gib"]) * GIB,
        "predicted": peak + expressed.outside,
        "evidence": "trace",
    }


class Shape(NamedTuple):
    """What the table does not say of a Llama's architecture (its public configuration)."""

    kv_heads: int
    intermediate: int


LLAMAS = {"Llama-3-8B": Shape(8, 14336), "Llama-2-13B": Shape(40, 13824), "Llama-2-70B": Shape(8, 28672)}
SHARDING = {"FSDP1 FULL_SHARD": "fsdp2", "FSDP1 SHARD_GRAD_OP": "zero2", "FSDP2": "fsdp2"}


def closed_form(row: dict[str, str]) -> float | None:
    """Return the closed form's bytes for a row that it expresses; None for any other.

    Those are MPT and Llama under FSDP. llm-foundry's default loss is flash-attn's fused cross-entropy; torchtitan's
    turns the logits to float32. torchtitan's selective checkpointing is priced as none, which is more.
    """
    llama = LLAMAS.get(row["model"])
    if (llama is None and not row["model"].startswith("MPT")) or row["gpu"] not in GPU_GIB:
        return None
    if row["sharding"] not in SHARDING or "fp8" in row["precision"]:
        return None
    if not all(row[key] for key in ("micro_batch", "seq_len", "world_size", "params")):
        return None
    hidden, heads = int(row["hidden"]), int(row["heads"])
    architecture = Architecture(
        layers=int(row["layers"]), hidden=hidden, heads=heads, kv_heads=llama.kv_heads if llama else heads,
        head_dim=hidden // heads, intermediate=llama.intermediate if llama else 4 * hidden, vocab=int(row["vocab"]),
        gated=llama is not None, tied=llama is None,
    )  # fmt: skip
    setup = Setup.model_validate(
        {
            "seq_len": int(row["seq_len"]), "micro_batch": int(row["micro_batch"]), "precision": "autocast",
            "sharding": SHARDING[row["sharding"]], "world": int(row["world_size"]),
            "checkpointing": "full" if row["activation_checkpointing"] == "full" else "none",
            "fused_loss": llama is None, "framework": GIB,
        }
    )  # fmt: skip
    return estimate(architecture, setup).device


def missing(row: dict[str, str]) -> str:
    """Say what keeps a row from being compared."""
    if any(mark in row["precision"].lower() for mark in ("fp8", "float8")):
        return "8-bit floats"
    if any(mark in row["sharding"] for mark in ("TP", "PP", "CP", "EP")):
        return "tensor, pipeline, context or expert parallelism"
    if "Muon" in row["optimizer"]:
        return "the Muon optimizer and a compiled model of the publisher's own"
    if not row["micro_batch"] or not row["seq_len"]:
        return "micro-batch or sequence length, which the publisher does not give"
    if not row["activation_checkpointing"]:
        return "checkpointing, of which the publisher says nothing"
    if row["compile"] == "yes":
        return "compilation"
    return "FSDP1, whose flat parameters carry gradients of frozen weights too"


def run(console: Console, smallest: bool = False) -> tuple[list[dict[str, Any]], list[str]]:
    """Compare, print, and return the rows and the targets that are missed; `smallest` traces one row."""
    published = list(csv.DictReader(DATA.open(encoding="utf-8")))
    if smallest:
        published = [row for row in published if row["id"] == SMALLEST]
    rows: list[dict[str, Any]] = []
    left: Counter[str] = Counter()
    names: dict[str, list[str]] = {}
    table = Table("row", "model", "gpu", "what", "measured GiB", "predicted GiB", "error", box=None)
    fitted = wrong = 0
    missed: list[str] = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for row in published:
            if row["id"] in EXPRESSED:
                found = traced(row, pool)
                if isinstance(found, str):
                    missed.append(f"row {row['id']} is traced: {found}")
                    continue
                error = found["predicted"] / found["measured"] - 1
                size = {"model": row["model"], "micro_batch": int(row["micro_batch"])}
                rows.append({"id": row["id"], **size, **found, "error": error})
                sizes = (f"{found[key] / GIB:.2f}" for key in ("measured", "predicted"))
                table.add_row(
                    row["id"], row["model"], row["gpu"], found["published"], *sizes, f"{error:+.1%}"
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
        console.print(
            f"{count} rows not expressed for want of {reason}: {', '.join(names[reason])}", highlight=False
        )
    if errors and (median := statistics.median(errors)) > LIMIT:
        missed.append(f"a median error of at most {LIMIT:.0%}: {median:.1%}")
    if wrong:
        missed.append(f"the closed form is wrong about none of the runs that fitted: {wrong}")
    return rows, missed
