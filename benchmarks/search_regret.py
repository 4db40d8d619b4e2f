"""What a guided search leaves undone: its winner against the best of the whole ladder, on simulated GPUs.

    python -m benchmarks.search_regret [--case gpt2-xl-24gb]

A search traces what it expects to win, and guesses what the rest would take from the techniques one by one. Here it
ends, and then every legal rung of its space is traced and priced at each micro-batch that a search looks at. The regret
is by how much longer the winner's global step takes than the fastest of these; below zero where the winner has a number
of checkpointed blocks that is no rung of the ladder. Guesses are those of combinations, traced by the search or not, at
the largest micro-batch that fits: of the logarithm of the price over the guess the root mean square is given, which
`search.prospects.COMBINED` is meant to be, and the largest.

Targets: a regret of at most the margin of a search in every case; and in every case guesses whose root mean square is
at most COMBINED.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from autotune.candidate import Candidate
from autotune.devices.find import check_device
from autotune.executors.find import find_executor
from autotune.options import RunOptions
from autotune.probe.warm import WarmLauncher
from autotune.run.folder import create_run
from autotune.run.loop import tune
from autotune.run.pricing import Pricing
from autotune.run.spec import to_spec
from autotune.search.comparison import MARGIN
from autotune.search.context import SearchContext
from autotune.search.prospects import COMBINED
from autotune.search.room import Room
from autotune.tracing.cache import TraceCache
from autotune.tracing.client import LocalTracer
from benchmarks.grid_oracle import told
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, verdict

CASES: dict[str, dict[str, str]] = {
    "gpt2-h100": {"model": "gpt2", "seq_len": "1024", "target_global_batch": "512K", "device": "sim:h100-80gb"},
    "gpt2-xl-h100": {"model": "gpt2-xl", "seq_len": "1024", "target_global_batch": "4M", "device": "sim:h100-80gb"},
    "gpt2-xl-24gb": {"model": "gpt2-xl", "seq_len": "1024", "target_global_batch": "1M", "device": "sim:l4-24gb"},
    "llama-3.2-1b-24gb": {
        "model": "llama-3.2-1b", "seq_len": "4096", "target_global_batch": "1M", "device": "sim:rtx-4090-24gb",
    },
    "llama-3.2-1b-long": {
        "model": "llama-3.2-1b", "seq_len": "32768", "target_global_batch": "1M", "device": "sim:rtx-4090-24gb",
    },
    "llama-3.1-8b-8": {
        "model": "llama-3.1-8b", "seq_len": "2048", "target_global_batch": "4M", "device": "sim:h100-80gb", "gpus": "8",
    },
}  # fmt: skip
LEAST: dict[str, str] = {
    "model": "tiny-gpt2", "seq_len": "64", "target_global_batch": "512", "device": "sim:l4-24gb", "space": "basic",
}  # fmt: skip
NEAR = 1.5
"""Of combinations that take at most so many times as long as the fastest a guess may decide."""
TRACING = 3600.0
"""Seconds after which a worker is given up."""


def regret(given: dict[str, str], folder: Path) -> dict[str, Any]:
    """Search a case to its end, then price its whole ladder; return what both came to."""
    spec = to_spec(RunOptions.load(dict(given), "options"), check_device, folder)
    stages: list[Pricing] = []
    informed = Pricing.informed

    def seen(self: Pricing) -> SearchContext:
        stages[:] = [self]
        return informed(self)

    with WarmLauncher() as launcher:
        tracer = LocalTracer(TraceCache(folder / "traces"), launcher)
        executor = find_executor(spec.device, tracer, launcher=launcher)
        began = time.perf_counter()
        with patch.object(Pricing, "informed", seen):
            best = tune(spec, create_run(spec, folder), executor, tracer=tracer)
        searched = time.perf_counter() - began
        (stage,) = stages
        found = stage.informed()
        rungs = [rung for rung in found.ladder.rungs if found.ladder.competes(rung, best.candidate)]
        traced = {rung for rung in rungs if found.predictor and found.predictor.covers(rung)}
        left = [rung for rung in rungs if rung not in traced | found.untraceable | found.refused]
        began = time.perf_counter()
        if left and stage.predictions is not None:
            request = stage.request(left[0], "trace").model_copy(update={"also": tuple(left[1:])})
            stage.predictions.trace(request, TRACING)
        whole = stage.informed()
    assert whole.predictor is not None
    room = Room((), whole, whole.predictor, simulated=True)
    prices = {
        rung: {size: price for size in room.sure(rung) if (price := whole.seconds(rung.at(size))) is not None}
        for rung in rungs
        if room.covers(rung)
    }
    every = {rung.at(size): price for rung, some in prices.items() for size, price in some.items()}
    fastest = min(every, key=lambda one: every[one])
    price = every[fastest]
    won = whole.seconds(best.candidate)
    assert won is not None, "what was probed is priced"
    off = guesses(whole, room, prices)
    return {
        "seconds": searched, "whole_seconds": searched + time.perf_counter() - began,
        "rungs": len(rungs), "traced": len(traced), "winner": told(best.candidate),
        "winner_step": won, "fastest": told(fastest), "fastest_step": price, "regret": won / price - 1,
        "guesses": len(off), "guess_off": math.sqrt(statistics.fmean(one * one for one in off)) if off else 0.0,
        "guess_most": max(map(abs, off), default=0.0),
    }  # fmt: skip


def guesses(context: SearchContext, room: Room, prices: dict[Candidate, dict[int, float]]) -> list[float]:
    """Return the logarithms of prices over guesses, of combinations of techniques that come near the fastest."""
    near = NEAR * min(price for some in prices.values() for price in some.values())
    found = []
    for rung, some in prices.items():
        size = max(some, default=0)
        parts = context.ladder.parts(rung)
        if not parts or rung in parts or not size or some[size] > near:
            continue

        def priced(part: Candidate, size: int = size) -> float | None:
            return context.seconds(part.at(size)) if room.covers(part) else None

        guess = context.ladder.guess(rung, priced)
        if guess is not None:
            found.append(math.log(some[size] / guess))
    return found


def missed_by(rows: list[dict[str, Any]]) -> list[str]:
    """Return which targets are missed."""
    missed = [f"{row['case']}: a regret of at most {MARGIN:.0%}: {row['regret']:.1%}" for row in rows
              if row["regret"] > MARGIN]  # fmt: skip
    return missed + [
        f"{row['case']}: guesses within {COMBINED:g}: {row['guess_off']:.3f}"
        for row in rows
        if row["guess_off"] > COMBINED
    ]


def main() -> int:
    """Search every case and price its whole ladder, print the table, record it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="may be repeated")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    cases = {"least": LEAST} if options.smallest else {name: CASES[name] for name in options.case or CASES}
    console, load = Console(width=180), os.getloadavg()[0]
    rows: list[dict[str, Any]] = []
    for name, given in cases.items():
        with tempfile.TemporaryDirectory(prefix="search-regret-") as folder:
            rows.append({"case": name, "options": given, **regret(given, Path(folder))})
        console.print(f"{name}: regret {rows[-1]['regret']:.1%}")
    missed = missed_by(rows)
    table = Table(
        "case", "regret", "winner", "traced", "seconds", "whole ladder", "guesses", "rms", "most",
        caption="\n".join(missed or ["no target is missed"]), caption_justify="left",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row["case"], f"{row['regret']:.1%}", row["winner"], f"{row['traced']} of {row['rungs']}",
            f"{row['seconds']:.0f} s", f"{row['whole_seconds']:.0f} s", str(row["guesses"]),
            f"{row['guess_off']:.3f}", f"{row['guess_most']:.2f}",
        )  # fmt: skip
    console.print(table)
    console.print(
        record(
            "search_regret", rows, options.out, smallest=options.smallest, cases=options.case, load=load,
            missed=missed, margin=MARGIN, combined=COMBINED,
        )
    )  # fmt: skip
    return verdict([] if options.smallest else missed)


if __name__ == "__main__":
    sys.exit(main())
