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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.candidate import Candidate
from autotune.devices.find import find
from autotune.devices.recorded_grid import (
    Conditions,
    GridHeader,
    GridPoint,
    GridTrace,
    RecordedGrid,
    append_line,
    read_grid,
)  # fmt: skip
from autotune.environment import look_around
from autotune.errors import InputError
from autotune.executors.executor import Executor, ProbeResult
from autotune.executors.find import find_executor
from autotune.options import Limits
from autotune.probe.launch import Launcher
from autotune.probe.protocol import Inspection, ProbeRequest, Progress
from autotune.probe.warm import WarmLauncher
from autotune.run.journal import now
from autotune.run.preflight import Preflight
from autotune.tracing.cache import TraceCache
from autotune.tracing.client import LocalTracer
from autotune.tracing.replay import packed
from benchmarks.grid_definitions import DEFINITIONS, Definition
from benchmarks.grid_definitions import SMALLEST as SMALLEST_GRID
from benchmarks.grid_oracle import Oracle, compare, rounds_of, search_context, told
from benchmarks.grid_plan import planned
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict

GRIDS = Path(__file__).parent / "data" / "grids"
ROOT = Path(__file__).parent.parent
POINTS, OOM, NOT_PLAIN = 60, 1 / 3, 4
"""Targets."""
BEST = 10
"""Trials that are measured again."""
LIMITS = Limits(sample_time=1.0, sample_steps=10, probe_timeout=300.0)
"""Of each trial: a run's own limits are longer, but so is a run's model."""


@dataclass(frozen=True)
class Recorder:
    """Measures on one device, for one file."""

    path: Path
    executor: Executor
    launcher: Launcher
    """What the executor launches with; traces are launched so too."""
    commit: str

    @classmethod
    def of(cls, definition: Definition, path: Path, launcher: Launcher) -> Recorder:
        """Return what measures a definition's trials."""
        device = definition.device_spec()
        executor = find_executor(device, LocalTracer(launcher=launcher), launcher=launcher)
        return cls(path, executor, launcher, commit())

    def conditions(self) -> Conditions:
        """Return what holds now; the load at the end is filled in later."""
        load = os.getloadavg()[0]
        return Conditions(
            time=now(),
            commit=self.commit,
            environment=look_around().environment(),
            load_before=load,
            load_after=load,
        )

    def measure(self, header: GridHeader, candidate: Candidate, round: int = 0) -> GridPoint:
        """Measure one trial and append it."""
        steps = search_context(header).batches(candidate).accumulation(candidate.micro_batch).steps
        seen: dict[str, float] = {}
        conditions, began = self.conditions(), time.monotonic()

        def note(progress: Progress) -> None:
            seen.setdefault(progress.phase, time.monotonic() - began)

        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recording-") as folder:
            finding = self.executor.run(
                request(header, candidate, "train", steps), Path(folder) / "probe",
                timeout=header.limits.probe_timeout, on_progress=note,
            )  # fmt: skip
        assert not isinstance(finding.answer, Inspection)
        build, forward = seen.get("build"), seen.get("forward")
        point = GridPoint(
            candidate=candidate, accumulation_steps=steps, round=round, outcome=finding.answer,
            seconds=finding.seconds, start_seconds=build,
            build_seconds=None if build is None or forward is None else forward - build,
            variables=finding.variables,
            conditions=conditions.model_copy(update={"load_after": os.getloadavg()[0]}),
        )  # fmt: skip
        append_line(self.path, point)
        return point


def request(header: GridHeader, candidate: Candidate, kind: str, steps: int = 1) -> ProbeRequest:
    """Return the request for a candidate at the grid's goal."""
    return ProbeRequest.model_validate(
        {
            "kind": kind, "model": header.model, "candidate": candidate, "seq_len": header.goal.seq_len,
            "accumulation_steps": steps, "device": header.site.device.torch_name,
            "budget": header.site.device.budget, "seed": header.seed,
            "sample_seconds": header.limits.sample_time, "sample_steps": header.limits.sample_steps, "folder": "",
        }
    )  # fmt: skip


def inspect(definition: Definition, executor: Executor, timeout: float) -> tuple[ProbeResult, float]:
    """Inspect a definition's model as a run does; return what came of it, and the seconds until its worker began."""
    model, goal, device = definition.model(), definition.goal(), executor.describe().device
    asked = ProbeRequest(
        kind="inspect", model=model, candidate=Candidate(), seq_len=goal.seq_len, accumulation_steps=1,
        device=device.torch_name, budget=device.budget, seed=0, sample_seconds=1, sample_steps=2, folder="",
        time_device=True,
    )  # fmt: skip
    seen, began = dict[str, float](), time.monotonic()

    def note(progress: Progress) -> None:
        seen.setdefault(progress.phase, time.monotonic() - began)

    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recording-") as folder:
        finding = executor.run(asked, Path(folder) / "inspection", timeout=timeout, on_progress=note)
    if not isinstance(finding.answer, Inspection):
        raise unmeasured("record_grid", f"{definition.name}: the model cannot be inspected: {finding.answer}")
    return finding, seen["build"]


def begin(definition: Definition, recorder: Recorder, limits: Limits) -> GridHeader:
    """Inspect the model, cold and as probes do, and return the first line of its grid."""
    device = find(definition.device_spec())
    site = recorder.executor.describe()
    conditions = recorder.conditions()
    model, goal = definition.model(), definition.goal()
    cold = find_executor(definition.device_spec(), LocalTracer())
    _, cold_start = inspect(definition, cold, limits.probe_timeout)
    finding, _ = inspect(definition, recorder.executor, limits.probe_timeout)
    assert isinstance(finding.answer, Inspection)
    rooms = {place: device.offload_room(Path.cwd(), place) for place in ("host", "disk")}
    return GridHeader.model_validate(
        {
            "name": definition.name, "model": model, "facts": finding.answer.facts, "goal": goal,
            "space": definition.space().model_dump(mode="json"), "site": site, "minimum": device.minimum(),
            "baseline": finding.baseline or 0, "speed": finding.answer.speed, "inspection_seconds": finding.seconds,
            "cold_start_seconds": cold_start, "rooms": rooms,
            "variables": device.environment(Candidate()), "limits": limits, "conditions": conditions,
        }
    )  # fmt: skip


def candidates(header: GridHeader, executor: Executor) -> list[Candidate]:
    """Return every trial of a grid, in the order in which they are measured: drawn, the same at every start."""
    context = search_context(header)
    preflight = Preflight(context, executor, Path.cwd())
    plain = Candidate(**{axis: values[0] for axis, values in context.space.axes.items()})
    found = []
    for rung in context.rungs():
        batches = context.batches(rung)
        sizes = range(1, batches.limit + 1) if rung == plain else batches.useful
        found += [rung.at(size) for size in sizes if preflight.refusal(rung.at(size)) is None]
    return Random(header.name).sample(found, len(found))


def trace(header: GridHeader, rungs: list[Candidate], cache: Path, launcher: Launcher) -> Iterator[GridTrace]:
    """Trace rungs together, and those whose trace holds for one micro-batch alone at every one that is of use.

    The wall time of a call, beyond the start of its first worker, is shared by all that it traced.
    """
    tracer, context = LocalTracer(TraceCache(cache), launcher), search_context(header)
    waiting = rungs
    while waiting:
        asked = request(header, waiting[0], "trace").model_copy(update={"also": tuple(waiting[1:])})
        began, first = time.monotonic(), _First()
        traces = tracer.trace(asked, cache / "worker", timeout=1800, on_progress=first)
        start = (first.heard or began) - began
        own = (time.monotonic() - began - start) / len(traces)
        waiting = []
        for one, made in traces.items():
            timeline = "" if made.timeline is None else packed(made.timeline)
            yield GridTrace(
                candidate=one, seconds=own, start_seconds=start, reason=made.reason, timeline=timeline
            )
            if made.timeline is not None and made.timeline.exact is not None and one == one.rung():
                waiting += [one.at(size) for size in context.batches(one).useful if size != one.micro_batch]


class _First:
    """When something was heard first."""

    heard: float | None = None

    def __call__(self, _: Progress) -> None:
        self.heard = self.heard or time.monotonic()


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
        and grid.header.site.device.budget == budget
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
        repeat(recorder, rounds, console)
    return len(trials)


def repeat(recorder: Recorder, rounds: int, console: Console) -> None:
    """Measure the fastest again in alternation, and store which of them cannot be told apart."""
    grid = read_grid(recorder.path)
    best = Oracle(grid).fastest(BEST)
    for number in range(1, rounds + 1):
        for one in best if number % 2 else reversed(best):
            if any(point.round == number for point in grid.repeats.get(one, ())):
                continue
            point = recorder.measure(grid.header, one, round=number)
            console.print(f"{grid.header.name} round {number}: {told(one)}: {point.seconds:.1f} s")
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


def commit() -> str:
    """Return the checked-out commit, with `+` where the code was changed since; empty without git."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no", "--", "autotune", "benchmarks/*.py"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{found}+" if changed else found


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
