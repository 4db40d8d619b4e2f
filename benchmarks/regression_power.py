"""Whether a slower or larger night is found, and a night of noise alone is not.

    python -m benchmarks.regression_power [--real NIGHTS --in FOLDER] [--sequences 200]

Two parts, which say different things:

`resampled` is the statistics alone. A night is made of measurements that were really made: the repeats of candidates in
the recorded grids (`benchmarks/data/grids`: 40 candidates, each measured in three rounds, minutes apart). What a night
measures is the trimmed mean, as a proof reports it, of the steps of as many of them as fill its proof (a minute, as
`--proof-time` has it by default, or five), drawn with replacement from one candidate's residuals. To that comes a
drift between nights, which the grids do not have: normal, with the standard deviation that a row says, the same in all
proofs of one night. A winner that seems slower is proven again, as the controller does it. Each sequence has 7 nights
of noise, then 20 of noise, then 20 that are 10% slower, of 1 cell and of 20 cells. Beside it stands
Welch's two-sample test on the samples of the two nights at the same level, which takes steps of one night for what
another night would show.

`real` are nights of a sweep on the cpu device through its controller (`regression_nights`): model file, probe, proof,
journal, store, comparison, exit code. The model's step is mostly a timed wait, so that what else this machine does
hardly shows in it. After 7 nights come 20 of noise alone, then 20 in which it is in turns 10% slower and takes 3% more
of memory.

Targets: a regression is found and named in at least 19 of 20 nights, where nights of the cell differ by QUIET at most
(resampled), and of the real nights with exit code 5; no alarm in 20 real nights of noise, and resampled in at most
0.1% of the nights of noise whatever they differ by, within what so many nights can tell. On the machine of the grids
steps differ by 10% and more, so that a minute's proof tells of no 10%: its rows are there to show that.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune.candidate import Candidate
from autotune.confidence import t_quantile
from autotune.devices.recorded_grid import read_grid
from autotune.outcome import Ok
from autotune.results.moderated import upper_tail
from autotune.results.regression import (
    LEAST,
    NORMAL,
    REMEMBERED,
    Spread,
    falls,
    single_speed,
    slower,
    spreads,
    suspected,
)
from autotune.results.row import CellRow, Environment
from autotune.results.thresholds import Thresholds
from autotune.sampling import TRIMMED, summarize
from autotune.search.drift import PRIOR_WEIGHT
from benchmarks.recording import RESULTS, record
from benchmarks.regression_nights import SLOWER, WANTED, real
from benchmarks.verdict import SMALLEST, verdict

GRIDS = Path(__file__).parent / "data" / "grids"
NIGHTS = 20
FOUND, ALARMS = 19, 0.001
"""Targets: nights of 20 in which a regression is found, and alarms in a night of noise."""
HISTORY = 7
SETTINGS = ((60.0, 1), (300.0, 1), (300.0, 20))
"""Seconds of a proof, and cells."""
PAIRS = 3
"""Pairs of measurements that a run tells its own drift from."""
DRIFTS = (0.0, 0.005, 0.01)
"""Standard deviations between nights, as shares."""
QUIET = 0.015
"""Standard deviation between nights up to which a fall of 10% must be found."""
HERE = Environment(device_kind="cpu", hardware="recorded", evidence="measured")
Pool = list[tuple[float, list[float]]]
"""Residuals of one candidate's measurements, each with its steps."""


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


class Noise:
    """What one cell measures where nothing changed."""

    def __init__(self, rng: random.Random, pool: Pool, drift: float, proof: float) -> None:
        self._rng, self._pool, self._drift = rng, pool, drift
        self._count = max(1, round(proof / statistics.median(sum(steps) for _, steps in pool)))

    def night(self) -> float:
        """Return by how much a night is slower than another, as a logarithm."""
        return self._rng.gauss(0, self._drift)

    def proof(self, shift: float) -> tuple[float, list[float]]:
        """Return a proof's tokens per second in a night, and the samples that its steps show."""
        drawn = [self._rng.choice(self._pool) for _ in range(self._count)]
        samples = [
            math.exp(shift + residual) * step / statistics.fmean(steps)
            for residual, steps in drawn
            for step in steps
        ]
        return 1000 / summarize(samples, TRIMMED).mean, samples

    def within(self) -> float:
        """Return what a run tells of one proof's difference from the next, by a few of them, as `search.drift` does."""
        squares = [(math.log(self.proof(0.0)[0] / self.proof(0.0)[0])) ** 2 / 2 for _ in range(PAIRS)]
        return math.sqrt((PRIOR_WEIGHT * LEAST + math.fsum(squares)) / (PRIOR_WEIGHT + PAIRS))


def as_row(cell: str, proofs: Sequence[tuple[float, list[float]]], drift: float) -> CellRow:
    speed, samples = proofs[-1]
    error = statistics.stdev(samples) / math.sqrt(len(samples)) / statistics.fmean(samples)
    return CellRow(
        sweep="power", night="n", cell=cell, state="proven", environment=HERE, winner=Candidate(),
        tokens_per_second=speed, interval=math.hypot(NORMAL * error, t_quantile(PRIOR_WEIGHT + PAIRS) * drift) * speed,
        step_seconds=tuple(samples), drift=drift, proofs=tuple(one for one, _ in proofs),
    )  # fmt: skip


def welch(before: Sequence[float], now: Sequence[float]) -> float:
    """Return the one-sided p-value of Welch's test that steps have become slower."""
    parts = [statistics.variance(one) / len(one) for one in (before, now)]
    degrees = sum(parts) ** 2 / sum(
        part**2 / (len(one) - 1) for part, one in zip(parts, (before, now), strict=True)
    )
    return upper_tail((statistics.fmean(now) - statistics.fmean(before)) / math.sqrt(sum(parts)), degrees)


def sequence(rng: random.Random, pools: list[Pool], cells: int, drift: float, proof: float) -> dict[str, Any]:
    """Return what is told of NIGHTS of noise and of as many that are slower: nights with an alarm, cells found."""
    thresholds = Thresholds()
    noise = {f"c{place}": Noise(rng, rng.choice(pools), drift, proof) for place in range(cells)}
    history: dict[str, list[CellRow]] = {name: [] for name in noise}
    again = 0

    def past(names: Iterable[str]) -> dict[str, Spread]:
        return spreads(
            {name: history[name][-HISTORY:] for name in names},
            {name: [single_speed(row) for row in history[name][-REMEMBERED:]] for name in names},
        )

    def night(slower_cell: str = "") -> dict[str, CellRow]:
        nonlocal again
        rows = {}
        for name, one in noise.items():
            shift = one.night() - (math.log(1 - SLOWER) if name == slower_cell else 0.0)
            proofs, within = [one.proof(shift)], one.within()
            rows[name] = as_row(name, proofs, within)
            near = history[name][-HISTORY:]
            while near and suspected(rows[name], near, past([name])[name], thresholds):
                again += 1
                proofs.append(one.proof(shift))
                rows[name] = as_row(name, proofs, within)
        return rows

    def told(tonight: dict[str, CellRow]) -> list[str]:
        spread, level = past(noise), thresholds.false_alarms / (2 * cells)
        return [
            name
            for name, row in tonight.items()
            if slower(falls(row, history[name][-HISTORY:], spread[name]), level, thresholds) is not None
        ]

    for _ in range(HISTORY):
        for name, row in night().items():
            history[name].append(row)
    again = 0
    found: dict[str, Any] = {"alarms": 0, "naive": 0, "found": 0}
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
    found["again"] = again / NIGHTS / cells
    slow = next(iter(noise))
    for _ in range(NIGHTS):
        found["found"] += slow in told(night(slow))
    logs = [noise[slow].proof(noise[slow].night())[0] for _ in range(30)]
    found["spread"] = statistics.stdev(map(math.log, logs))
    return found


def resampled(sequences: int, settings: Sequence[tuple[float, int]] = SETTINGS) -> list[dict[str, Any]]:
    pools = recorded_noise()
    rows = []
    for proof, cells in settings:
        for drift in DRIFTS:
            rng = random.Random(f"{proof} {cells} {drift}")
            count = max(1, sequences // cells)
            runs = [sequence(rng, pools, cells, drift, proof) for _ in range(count)]
            quiet = [one for one in runs if one["spread"] <= QUIET]
            rows.append(
                {
                    "part": "resampled", "proof_seconds": proof, "cells": cells, "drift": drift, "sequences": count,
                    "nights": NIGHTS,
                    "spread_between_nights": round(statistics.median(one["spread"] for one in runs), 5),
                    "alarms": sum(one["alarms"] for one in runs),
                    "alarms_a_night": sum(one["alarms"] for one in runs) / count / NIGHTS,
                    "alarms_a_night_of_a_two_sample_test": sum(one["naive"] for one in runs) / count / NIGHTS,
                    "proofs_more_a_cell_and_night": round(sum(one["again"] for one in runs) / count, 4),
                    "found_of_20": round(sum(one["found"] for one in runs) / count, 3),
                    "quiet_sequences": len(quiet),
                    "found_of_20_where_quiet": round(sum(one["found"] for one in quiet) / max(1, len(quiet)), 3),
                }
            )  # fmt: skip
            Console().print(rows[-1])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--real", type=int, default=NIGHTS, metavar="NIGHTS", help="of noise, and as many regressed"
    )
    parser.add_argument("--history", type=int, default=HISTORY, help="real nights before those")
    parser.add_argument("--sequences", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    given = parser.parse_args()
    sequences, settings = (6, SETTINGS[:1]) if given.smallest else (given.sequences, SETTINGS)
    rows = resampled(sequences, settings) if sequences else []
    if given.real and not given.smallest:
        with tempfile.TemporaryDirectory(prefix="autotune-power-") as folder:
            rows += real(given.real, given.history, Path(folder))
    path = record("regression_power", rows, given.out, smallest=given.smallest)
    Console().print(f"written: {path}")
    return verdict([] if given.smallest else missed(rows))


def missed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return which targets were missed."""
    found = []
    for row in rows:
        if row["part"] == "resampled":
            where = f"{row['cells']} cells, proofs of {row['proof_seconds']:g} s, drift {row['drift']:.1%}"
            if row["quiet_sequences"] and row["found_of_20_where_quiet"] < FOUND:
                found.append(f"{where}: found in {row['found_of_20_where_quiet']:.1f} of 20 nights")
            expected = ALARMS * row["sequences"] * NIGHTS
            if row["alarms"] > expected + 3 * math.sqrt(expected):  # of a Poisson number with that mean
                found.append(f"{where}: {row['alarms']} alarms in {row['sequences'] * NIGHTS} nights")
            continue
        if row["proven"] < row["nights"]:
            found.append(f"real nights of {row['kind']}: {row['proven']} of {row['nights']} have a winner")
        if row["kind"] in {"history", "noise"} and row["told"]:
            found.append(f"real nights of {row['kind']}: {row['told']} alarms")
        least = min(row["named"], row["exit_code_5"])
        if row["kind"] in WANTED and least < row["nights"] * FOUND / NIGHTS:
            found.append(f"real nights, {row['kind']}: {least} of {row['nights']} found and named")
    return found


if __name__ == "__main__":
    sys.exit(main())
