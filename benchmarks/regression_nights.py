"""Real nights for `regression_power`: sweeps of one timed model on the cpu device, compared as they end."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune.cli.sweep import CODES
from autotune.exit_codes import ExitCode
from autotune.results.find import open_store
from autotune.results.row import CellRow
from autotune.sweep.asked import AskedSweep
from autotune.sweep.execution import LocalExecution
from autotune.sweep.night import NightPaths
from autotune.sweep.start import Night, run_night
from benchmarks.verdict import unmeasured

SLOWER, LARGER = 0.10, 0.03
"""Artificial regressions: share of the speed that is lost, and of the peak that is added."""
WAIT = 0.1
"""Seconds of each micro-step that are a timed wait."""
WANTED = {"slower": "throughput", "larger": "peak"}
"""What must be named in a night of each kind."""
MODEL = '''"""A model whose step is mostly a timed wait."""

import time

import torch
from torch import nn

WAIT = {wait}
EXTRA = {extra}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, hidden):
        return hidden + self.down(torch.relu(self.up(hidden)))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 64)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(64, 32)
        self.register_buffer("extra", torch.full((EXTRA // 4 + 1,), 1.0), persistent=False)

    def forward(self, tokens, targets):
        time.sleep(WAIT)
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return {{"loss": nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())}}


def make_batch(micro_batch, seq_len):
    tokens = torch.randint(32, (micro_batch, seq_len + 1))
    return {{"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}}


def build():
    return Network(), make_batch
'''
SPACE = """
name: one
description: one rung, which fits
axes: {precision: [fp32]}
graph:
  start: baseline
  nodes:
    baseline: {title: FP32 baseline, set: {precision: fp32}}
"""
SWEEP = {
    "name": "power",
    "matrix": {"model": "timed_model:build", "hardware": "cpu", "goal": "step", "space": "one.yaml"},
    "hardware": {"cpu": {"device": "cpu:1GiB"}},
    "goals": {
        "step": {"target_global_batch": "1 samples", "seq_len": 16, "strategy": "graph", "predict": False}
    },
    "limits": {"max_probes": 1, "sample_time": "1s", "proof_time": "3s"},
    "results": "results",
}


def night(
    folder: Path, name: str, execution: LocalExecution, wait: float, extra: int
) -> tuple[CellRow, Night]:
    """Run a night of the timed model; return what the store has of its cell, and what the night came to."""
    (folder / "timed_model.py").write_text(MODEL.format(wait=wait, extra=extra))
    (folder / "one.yaml").write_text(SPACE)
    (folder / "sweep.yaml").write_text(json.dumps(SWEEP))
    paths = NightPaths(folder / "runs" / "sweeps" / "power" / name)
    paths.cells.mkdir(parents=True)
    ended = run_night(AskedSweep.read(folder / "sweep.yaml"), paths, execution=execution)
    with open_store(folder / "results") as store:
        (cell,) = store.cells("power", [name])
    return cell, ended


def kinds(history: int, nights: int) -> Iterator[str]:
    """Yield what each night is: so many to learn from, then of noise alone, then as many with a regression."""
    yield from itertools.repeat("history", history)
    yield from itertools.repeat("noise", nights)
    yield from itertools.islice(itertools.cycle(("slower", "larger")), nights)


def real(nights: int, history: int, folder: Path) -> list[dict[str, Any]]:
    """Run the nights through the controller; return, by kind, how many told what, and with which exit code."""
    done: list[dict[str, Any]] = []
    with LocalExecution(1) as execution:
        for number, kind in enumerate(kinds(history, nights)):
            extra = 0
            if kind == "larger":
                extra = round(
                    LARGER * statistics.median(one["peak"] for one in done if one["kind"] == "history")
                )
            wait = WAIT / (1 - SLOWER) if kind == "slower" else WAIT
            cell, ended = night(folder, f"{number:04d}", execution, wait, extra)
            if kind == "history" and cell.state != "proven":
                raise unmeasured(
                    "regression_power", f"a night without a change came to {cell.state}: {cell.reason}"
                )
            assert ended.record.compared is not None
            named = {change.kind for change in ended.record.compared.regressions}
            (entry,) = ended.record.ended.values()
            code = ExitCode.REGRESSION if named else CODES[entry.state]  # as `autotune sweep run` ends
            done.append({
                "kind": kind, "state": cell.state, "named": sorted(named), "peak": cell.peak, "exit_code": int(code),
                "proofs": cell.proofs, "drift": cell.drift, "tokens_per_second": cell.tokens_per_second,
            })  # fmt: skip
            Console().print(number, done[-1])
    good = [one["proofs"][0] for one in done if one["kind"] in {"history", "noise"} and one["proofs"]]
    spread = statistics.stdev(map(math.log, good)) if len(good) > 1 else 0.0
    rows = []
    for kind in dict.fromkeys(one["kind"] for one in done):
        of = [one for one in done if one["kind"] == kind]
        rows.append({
            "part": "real", "kind": kind, "nights": len(of), "proven": sum(one["state"] == "proven" for one in of),
            "told": sum(bool(one["named"]) for one in of),
            "named": sum(WANTED.get(kind) in one["named"] for one in of),
            "exit_code_5": sum(one["exit_code"] == ExitCode.REGRESSION for one in of),
            "proven_again": sum(len(one["proofs"]) > 1 for one in of), "spread_between_nights": round(spread, 5),
        })  # fmt: skip
    return rows
