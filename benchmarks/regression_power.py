"""Whether a slower or larger night is found, and a night of noise alone is not.

    python -m benchmarks.regression_power [--real NIGHTS --in FOLDER] [--sequences 200]

Two parts, which say different things:

`resampled` is the statistics alone. A night is made of measurements that were really made: the repeats of candidates in
the recorded grids (`benchmarks/data/grids`: 40 candidates, each measured in three rounds, minutes apart). What a night
measures is the trimmed mean, as a proof reports it, of the steps of as many of them as fill its proof (a minute, as
`--proof-time` has it by default, or five), drawn with replacement from one candidate's residuals. To that comes a
drift between nights, which the grids do not have: normal, with the standard deviation that a row says. Each sequence
has 7 nights of noise, then 20 of noise, then 20 that are 10% slower, of 1 cell and of 20 cells. Beside it stands
Welch's two-sample test on the samples of the two nights at the same level, which takes steps of one night for what
another night would show.

`real` are nights of real probes and proofs on the cpu device (`--real 20`; --in keeps them, and goes on): a tiny
model whose step is mostly a timed wait, so that what else this machine does hardly shows in it, then the same 10%
slower, then with a buffer of 3% of its peak. They go the whole way: model file, probe, proof, journal, store,
comparison, exit code.

Targets: a regression is found and named in at least 19 of 20 nights, where nights differ by QUIET at most
(resampled), and of the real nights; and no alarm in 20 nights of noise, resampled in at most 5% of all sequences
whatever nights differ by. On the machine of the grids steps differ by 10% and more, so that a minute's proof tells of
no 10%: its rows are there to show that.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune.candidate import Candidate
from autotune.devices.recorded_grid import read_grid
from autotune.outcome import Ok
from autotune.results.comparison import compare_night
from autotune.results.find import open_store
from autotune.results.record import record_run
from autotune.results.regression import REMEMBERED, falls, spreads
from autotune.results.row import CellRow, Environment
from autotune.results.student import upper_tail
from autotune.results.thresholds import Thresholds
from autotune.sampling import TRIMMED, summarize
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, verdict

GRIDS = Path(__file__).parent / "data" / "grids"
NIGHTS = 20
HISTORY = 7
SLOWER, LARGER = 0.10, 0.03
DRIFTS = (0.0, 0.005, 0.01)
"""Standard deviations between nights, as shares."""
QUIET = 0.015
"""Standard deviation between nights up to which a fall of 10% must be found."""
HERE = Environment(device_kind="cpu", hardware="recorded", evidence="measured")
Pool = list[tuple[float, list[float]]]
"""Residuals of one candidate's measurements, each with its steps."""
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
WAIT = 0.1
"""Seconds of each micro-step that are a timed wait."""


def recorded_noise() -> list[Pool]:
    """Return, for each candidate that was measured in rounds, its residuals with the steps of each measurement.

    A residual is the logarithm of the mean step less the candidate's mean, widened as for as many degrees of freedom.
    """
    found = []
    for file in sorted(GRIDS.glob("*.jsonl")):
        for points in read_grid(file).repeats.values():
            steps = [
                [*point.outcome.step_seconds]
                for point in points
                if isinstance(point.outcome, Ok) and point.outcome.step_seconds
            ]
            if len(steps) < 3:
                continue
            logs = [math.log(statistics.fmean(one)) for one in steps]
            middle, wider = statistics.fmean(logs), math.sqrt(len(logs) / (len(logs) - 1))
            found.append([((log - middle) * wider, one) for log, one in zip(logs, steps, strict=True)])
    return found


def resampled_night(rng: random.Random, pool: Pool, drift: float, proof: float) -> tuple[float, list[float]]:
    """Return the logarithm of a night's speed without a change, and the samples that its steps show."""
    count = max(1, round(proof / statistics.median(sum(steps) for _, steps in pool)))
    drawn = [rng.choice(pool) for _ in range(count)]
    shift = rng.gauss(0, drift)
    samples = [
        math.exp(shift + residual) * step / statistics.fmean(steps)
        for residual, steps in drawn
        for step in steps
    ]
    return -math.log(summarize(samples, TRIMMED).mean), samples


def as_row(cell: str, log: float, samples: Sequence[float]) -> CellRow:
    speed = 1000 * math.exp(log)
    error = statistics.stdev(samples) / math.sqrt(len(samples)) / statistics.fmean(samples)
    return CellRow(
        sweep="power", night="n", cell=cell, state="proven", environment=HERE, winner=Candidate(),
        tokens_per_second=speed, interval=1.96 * error * speed, step_seconds=tuple(samples),
    )  # fmt: skip


def welch(before: Sequence[float], now: Sequence[float]) -> float:
    """Return the one-sided p-value of Welch's test that steps have become slower."""
    parts = [statistics.variance(one) / len(one) for one in (before, now)]
    degrees = sum(parts) ** 2 / sum(
        part**2 / (len(one) - 1) for part, one in zip(parts, (before, now), strict=True)
    )
    return upper_tail((statistics.fmean(now) - statistics.fmean(before)) / math.sqrt(sum(parts)), degrees)


def sequence(rng: random.Random, pools: list[Pool], cells: int, drift: float, proof: float) -> dict[str, int]:
    """Return what is told of NIGHTS of noise and of as many that are slower: nights with an alarm, cells found."""
    thresholds = Thresholds()
    names = [f"c{place}" for place in range(cells)]
    kept = {name: rng.choice(pools) for name in names}
    history: dict[str, list[CellRow]] = {name: [] for name in names}

    def night() -> dict[str, CellRow]:
        return {name: as_row(name, *resampled_night(rng, kept[name], drift, proof)) for name in names}

    def told(tonight: dict[str, CellRow]) -> list[str]:
        spread = spreads(
            {name: rows[-HISTORY:] for name, rows in history.items()},
            {
                name: [row.tokens_per_second or 1 for row in rows[-REMEMBERED:]]
                for name, rows in history.items()
            },
        )
        level = thresholds.false_alarms / (2 * cells)
        found = []
        for name, row in tonight.items():
            both = falls(row, history[name][-HISTORY:], spread[name])
            if min(fall.share for fall in both) > 0 and any(
                fall.chance < level and fall.share > thresholds.throughput for fall in both
            ):
                found.append(name)
        return found

    for _ in range(HISTORY):
        for name, row in night().items():
            history[name].append(row)
    found = {"alarms": 0, "naive": 0, "found": 0}
    for _ in range(NIGHTS):
        tonight = night()
        alarms = told(tonight)
        found["alarms"] += bool(alarms)
        level = thresholds.false_alarms / cells
        found["naive"] += any(
            welch(history[name][-1].step_seconds, row.step_seconds) < level for name, row in tonight.items()
        )
        for name, row in tonight.items():
            if name not in alarms:
                history[name].append(row)
    for _ in range(NIGHTS):
        tonight = night()
        slow = names[0]
        log = math.log(tonight[slow].tokens_per_second or 1) + math.log(1 - SLOWER)
        samples = [step / (1 - SLOWER) for step in tonight[slow].step_seconds]
        tonight[slow] = as_row(slow, log - math.log(1000), samples)
        found["found"] += slow in told(tonight)
    return found


def resampled(sequences: int) -> list[dict[str, Any]]:
    pools = recorded_noise()
    rows = []
    for proof, cells in ((60.0, 1), (300.0, 1), (300.0, 20)):
        for drift in DRIFTS:
            rng = random.Random(f"{proof} {cells} {drift}")
            count = max(1, sequences // cells)
            runs = [sequence(rng, pools, cells, drift, proof) for _ in range(count)]
            spread = [
                statistics.stdev(resampled_night(rng, pool, drift, proof)[0] for _ in range(30))
                for pool in pools
            ]
            rows.append(
                {
                    "part": "resampled", "proof_seconds": proof, "cells": cells, "drift": drift, "sequences": count,
                    "nights": NIGHTS,
                    "spread_between_nights": round(statistics.median(spread), 5),
                    "sequences_with_an_alarm": sum(one["alarms"] > 0 for one in runs),
                    "alarms_a_night": sum(one["alarms"] for one in runs) / count / NIGHTS,
                    "alarms_a_night_of_a_two_sample_test": sum(one["naive"] for one in runs) / count / NIGHTS,
                    "found_of_20": round(sum(one["found"] for one in runs) / count, 3),
                }
            )  # fmt: skip
            Console().print(rows[-1])
    return rows


def real_night(folder: Path, wait: float, extra: int) -> CellRow:
    """Run one night of the timed model, keep its rows, and return its cell."""
    import autotune
    from autotune.run.folder import find_run

    (folder / "timed_model.py").write_text(MODEL.format(wait=wait, extra=extra))
    (folder / "one.yaml").write_text(SPACE)
    runs = folder / "runs"
    before = Path.cwd()
    os.chdir(folder)
    try:
        autotune.tune(
            model="timed_model:build", seq_len=16, target_global_batch="4 samples", device="cpu:1GiB",
            space="one.yaml", strategy="graph", predict=False, sample_time="1s", proof_time="3s", runs=runs,
        )  # fmt: skip
    finally:
        os.chdir(before)
    with open_store(folder / "results") as store:
        night = f"{len(store.nights('power')):04d}"
        rows = record_run(find_run("last", runs), "power", night, "timed")
        store.add(rows)
    return rows.cell


def real(nights: int, history: int, folder: Path) -> list[dict[str, Any]]:
    """Run nights until there are as many of each kind, and compare each; what is in the folder counts."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "nights.txt"
    done = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    plan = [("history", history), ("noise", nights), ("slower", nights), ("larger", nights)]
    for kind, count in plan:
        for _ in range(count - sum(line[1] == kind for line in done)):
            peaks = [int(line[3]) for line in done if line[1] == "history"]
            cell = real_night(
                folder, WAIT / (1 - SLOWER) if kind == "slower" else WAIT,
                round(LARGER * statistics.median(peaks)) if kind == "larger" else 0,
            )  # fmt: skip
            with open_store(folder / "results") as store:
                found = compare_night(store, "power", cell.night, Thresholds())
            named = "+".join(change.kind for change in found.regressions) or "nothing"
            speed, half = cell.tokens_per_second or 0, cell.interval or 0
            line = [
                cell.night,
                kind,
                named,
                str(cell.peak),
                f"{speed:.3f}",
                f"{half:.3f}",
                f"{cell.drift:.4f}",
            ]
            line.append(str(int(found.exit_code)))
            done.append(line)
            with log.open("a") as file:
                file.write(" ".join(line) + "\n")
            Console().print(*line)
    logs = [math.log(float(line[4])) for line in done if line[1] in {"history", "noise"}]
    spread = statistics.stdev(logs) if len(logs) > 1 else 0.0
    wanted = {"slower": "throughput", "larger": "peak"}
    return [
        {
            "part": "real", "kind": kind, "nights": sum(line[1] == kind for line in done),
            "told": sum(line[2] != "nothing" for line in done if line[1] == kind),
            "named": sum(wanted.get(kind, " ") in line[2].split("+") for line in done if line[1] == kind),
            "spread_between_nights": round(spread, 5),
        }
        for kind, _ in plan
        if any(line[1] == kind for line in done)
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", type=int, default=0, metavar="NIGHTS", help="real nights of each kind")
    parser.add_argument(
        "--in", dest="folder", type=Path, default=None, help="folder that keeps the real nights"
    )
    parser.add_argument("--history", type=int, default=HISTORY, help="real nights before those")
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    given = parser.parse_args()
    rows = resampled(20 if given.smallest else given.sequences) if given.sequences else []
    if given.real:
        with tempfile.TemporaryDirectory(prefix="autotune-power-") as temporary:
            rows += real(given.real, given.history, (given.folder or Path(temporary)).absolute())
    path = record("regression_power", rows, given.out, smallest=given.smallest)
    Console().print(f"written: {path}")
    missed = []
    for row in rows:
        if row["part"] == "resampled" and not given.smallest:
            where = f"{row['cells']} cells, proofs of {row['proof_seconds']:g} s, drift {row['drift']:.1%}"
            if row["found_of_20"] < 19 and row["spread_between_nights"] <= QUIET:
                missed.append(f"{where}: found in {row['found_of_20']:.1f} of 20 nights")
            if row["sequences_with_an_alarm"] > 0.05 * row["sequences"]:
                alarms = f"{row['sequences_with_an_alarm']} of {row['sequences']} sequences"
                missed.append(f"{where}: {alarms} have an alarm")
        if row["part"] == "real":
            if row["kind"] in {"history", "noise"} and row["told"]:
                missed.append(f"real nights of {row['kind']}: {row['told']} alarms")
            if row["kind"] in {"slower", "larger"} and row["named"] < 0.95 * row["nights"]:
                missed.append(
                    f"real nights, {row['kind']}: {row['named']} of {row['nights']} found and named"
                )
    return verdict(missed)


if __name__ == "__main__":
    sys.exit(main())
