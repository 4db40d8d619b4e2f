"""Measure every candidate of a grid on this machine's processor, for `--device replay:FILE` and `benchmarks.peers`.

    python -m benchmarks.record_grid --plan                      what the memory model expects of each definition
    python -m benchmarks.record_grid [NAME ...] [--most 5]       record, or go on with, benchmarks/data/grids/NAME.jsonl

Definitions are in `grid_definitions.py`. A grid holds every legal rung of its space at every micro-batch that is of
use to the global batch, and the plain bf16 rung at all of them, for searches that know no global batch. Trials come in
an order that is drawn, so that a machine that drifts slows no rung more than another; whatever ends the script, the
next start goes on. Then the ten fastest are measured again, in rounds of which each measures all of them, every other
round backwards, and which of them cannot be told from the fastest is stored. Nothing else should run meanwhile: the
load is stored with every trial.

Targets, for each grid: at least 60 trials, of which at least a third run out of memory; and over all that are whole: in
at least four the plain bf16 rung does not win.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.candidate import Candidate
from autotune.devices.recorded_grid import RecordedGrid, append_line, read_grid
from autotune.errors import InputError
from autotune.options import Limits
from autotune.probe.warm import WarmLauncher
from benchmarks.grid_definitions import DEFINITIONS, Definition
from benchmarks.grid_definitions import SMALLEST as SMALLEST_GRID
from benchmarks.grid_oracle import Oracle, compare, rounds_of, told
from benchmarks.grid_plan import planned
from benchmarks.grid_recorder import LIMITS, Recorder, begin, candidates, inspect, trace
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict

GRIDS = Path(__file__).parent / "data" / "grids"
POINTS, OOM, NOT_PLAIN = 60, 1 / 3, 4
"""Targets."""
BEST = 10
"""Trials that are measured again."""


def open_grid(definition: Definition, recorder: Recorder, limits: Limits) -> RecordedGrid:
    """Return the grid as far as it is recorded, begun where it is not. Raises InputError for one of something else."""
    if not recorder.path.exists() or not recorder.path.stat().st_size:
        recorder.path.parent.mkdir(parents=True, exist_ok=True)
        append_line(recorder.path, begin(definition, recorder, limits))
    grid = read_grid(recorder.path)
    budget = definition.device_spec().budget
    same = (
        not grid.mismatch(definition.model(), definition.goal())
        and grid.header.space == definition.space().model_dump(mode="json")
        and budget in (None, grid.header.site.device.budget)  # of a GPU, what was free at the start
    )
    if not same:
        raise InputError(f"{recorder.path} was recorded of another definition; move it away to begin anew")
    return grid


def record_one(
    definition: Definition, folder: Path, most: int | None, rounds: int, limits: Limits, console: Console
) -> tuple[RecordedGrid, int]:
    """Go on with a grid until it is whole, or `most` trials further; return it, and how many trials it has then."""
    with WarmLauncher() as launcher:
        recorder = Recorder.of(definition, folder / f"{definition.name}.jsonl", launcher)
        whole = _recorded(definition, recorder, most, rounds, limits, console)
    return read_grid(recorder.path), whole


def _recorded(
    definition: Definition,
    recorder: Recorder,
    most: int | None,
    rounds: int,
    limits: Limits,
    console: Console,
) -> int:
    begun = recorder.path.exists()
    grid = open_grid(definition, recorder, limits)
    header = grid.header
    if begun:  # the inspection of a grid that begins starts the server, which is no trial's to wait for
        inspect(definition, recorder.executor, limits.probe_timeout)
    trials = candidates(header, recorder.executor)
    rungs = list(dict.fromkeys(one.rung() for one in trials))
    if missing := [rung for rung in rungs if rung not in grid.traces]:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recording-") as cache:
            for line in trace(header, missing, Path(cache), recorder.launcher):
                append_line(recorder.path, line)
    left = [one for one in trials if one not in grid.points]
    for number, one in enumerate(left[:most], start=1):
        point = recorder.measure(header, one)
        console.print(
            f"{header.name} {number}/{len(left)}: {told(one)}: {point.outcome.kind}, {point.seconds:.1f} s"
        )
    if most is None or len(left) <= most:
        repeat(recorder, Oracle(read_grid(recorder.path)).fastest(BEST), rounds, console)
    return len(trials)


def repeat(recorder: Recorder, best: list[Candidate], rounds: int, console: Console) -> None:
    """Measure candidates again in alternation, and store which of them cannot be told from the fastest."""
    grid = read_grid(recorder.path)
    for number in range(1, rounds + 1):
        for one in best if number % 2 else reversed(best):
            if any(point.round == number for point in grid.repeats.get(one, ())):
                continue
            point = recorder.measure(grid.header, one, round=number)
            console.print(f"{grid.header.name} round {number}: {told(one)}: probed in {point.seconds:.1f} s")
    grid = read_grid(recorder.path)
    if (speeds := rounds_of(grid, best)) and (grid.equals is None or grid.equals.rounds < rounds):
        append_line(recorder.path, compare(speeds))


def row_of(grid: RecordedGrid, whole: int) -> dict[str, Any]:
    """Return what a grid covers."""
    oracle = Oracle(grid)
    loads = [point.conditions.load_before for point in grid.points.values()]
    fitting = bool(oracle.speeds)
    return {
        "grid": grid.header.name, "what": grid.header.space["description"], "device": grid.header.site.device.name,
        "budget": grid.header.site.device.budget, "trials": len(grid.points), "of": whole,
        "oom_share": oracle.oom_share(), "best": told(oracle.best) if fitting else None,
        "plain_wins": oracle.plain_wins() if fitting else None,
        "equals": [told(one) for one in oracle.equals] if fitting else [],
        "tokens_per_second": oracle.speeds[oracle.best] if fitting else None,
        "seconds": sum(point.seconds for point in grid.points.values()),
        "load": max(loads, default=0.0),
        "commits": sorted({point.conditions.commit for point in grid.points.values()}),
    }  # fmt: skip


def plan(definitions: list[Definition], rounds: int, console: Console) -> None:
    """Print what the models of memory and speed expect of each definition: only traces are made."""
    table = Table(
        "grid", "budget", "rungs", "trials", "OOM", "plain fits at", "fastest", "plain wins", "about", "smallest",
        "largest",
    )  # fmt: skip
    for definition in definitions:
        with WarmLauncher() as launcher:
            recorder = Recorder.of(definition, Path(os.devnull), launcher)
            header = begin(definition, recorder, LIMITS)
            trials = candidates(header, recorder.executor)
            rungs = list(dict.fromkeys(one.rung() for one in trials))
            with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recording-") as cache:
                traces = {line.candidate: line for line in trace(header, rungs, Path(cache), launcher)}
        row = planned(header, traces, trials, rounds * BEST)
        console.print(f"{definition.name}: {row.pop('peaks')}")
        table.add_row(definition.name, definition.device, str(len(rungs)), str(len(trials)), *row.values())
    console.print(table)


def missed_by(rows: list[dict[str, Any]]) -> list[str]:
    """Return which targets grids miss; those that are not whole yet are not judged."""
    whole = [row for row in rows if row["trials"] == row["of"]]
    missed = [
        f"{row['grid']}: at least {POINTS} trials: {row['trials']}" for row in whole if row["trials"] < POINTS
    ]
    missed += [
        f"{row['grid']}: a third of the trials out of memory: {row['oom_share']:.0%}"
        for row in whole
        if row["oom_share"] < OOM
    ]
    other = sum(not row["plain_wins"] for row in whole)
    if len(whole) >= len(DEFINITIONS) and other < NOT_PLAIN:
        missed.append(f"the plain bf16 rung does not win in at least {NOT_PLAIN} grids: {other}")
    return missed


def main() -> int:
    """Record, print what is covered, and record that."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="grids by name; all without one")
    parser.add_argument("--plan", action="store_true", help="only predict what each grid would cover")
    parser.add_argument("--most", type=int, help="trials of each grid in this start, at most")
    parser.add_argument("--rounds", type=int, default=3, help="in which the ten fastest are measured again")
    parser.add_argument("--grids", type=Path, default=GRIDS, help="folder of the grids")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    console = Console(width=200)
    definitions = [one for one in DEFINITIONS if not options.names or one.name in options.names]
    if unknown := set(options.names) - {one.name for one in DEFINITIONS}:
        raise unmeasured("record_grid", f"no grid is called {', '.join(sorted(unknown))}")
    limits, rounds, folder = LIMITS, options.rounds, options.grids
    if options.smallest:
        definitions, rounds, folder = [SMALLEST_GRID], 1, options.out
        limits = replace_limits(limits)
    if options.plan:
        plan(definitions, rounds, console)
        return verdict([])
    rows = []
    for definition in definitions:
        grid, whole = record_one(definition, folder, options.most, rounds, limits, console)
        rows.append(row_of(grid, whole))
    table = Table(
        "grid", "trials", "OOM", "fastest", "plain bf16 wins", "not told from it", "seconds", "load"
    )
    for row in rows:
        table.add_row(
            row["grid"], f"{row['trials']} of {row['of']}", f"{row['oom_share']:.0%}", str(row["best"]),
            str(row["plain_wins"]), str(max(0, len(row["equals"]) - 1)), f"{row['seconds']:.0f}", f"{row['load']:.1f}",
        )  # fmt: skip
    console.print(table)
    console.print(record("record_grid", rows, options.out, smallest=options.smallest))
    return verdict([] if options.smallest else missed_by(rows))


def replace_limits(limits: Limits) -> Limits:
    """Return limits for the smallest case."""
    return limits.model_copy(update={"sample_time": 0.3, "sample_steps": 3})


if __name__ == "__main__":
    sys.exit(main())
