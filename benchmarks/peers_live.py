"""Our default strategy beside the searches of others, live on this machine's processor: every probe trains.

    python -m benchmarks.peers_live [NAME ...]      cases of `grid_definitions.LIVE`, which are in no grid

Each probe of a peer is a process of its own, under the budget that the kernel enforces, and is measured once for all
peers; they are charged as `benchmarks.peers` charges them: a search whose trials share a process pays for start and
imports once. Ours is a whole run with its proof and an empty cache of traces, charged its wall time. `grid` is left
out: how fast a configuration can be is not known here. So what was delivered is measured again, in rounds of which each
measures all of it, every other round backwards, and shares are of the fastest of these; what cannot be told from that
counts as it. Then each is trained in a fresh process under the same budget: 50 optimizer steps of the longest
sequences, with evaluations and checkpoints (`long_training_worker.py`).

Targets, of the default strategy: those of `benchmarks.peers`, and no configuration that does not survive the 50 steps.
The four cases took 17 and 33 minutes on two machines of 2 cores that did nothing else.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune.cache_folder import VARIABLE
from autotune.candidate import Candidate
from autotune.devices.find import find
from autotune.devices.recorded_grid import GridHeader, GridPoint, append_line, read_grid
from autotune.environment import installed
from autotune.errors import AutotuneError
from autotune.executors.executor import Executor
from autotune.executors.find import find_executor
from autotune.executors.local import LocalExecutor
from autotune.outcome import Ok, Outcome
from autotune.probe.launch import launch
from autotune.probe.protocol import Inspection
from autotune.probe.warm import WarmLauncher
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.search.context import SearchContext
from autotune.specs import RunSpec
from autotune.tracing.client import LocalTracer
from benchmarks.grid_definitions import LIVE, Definition
from benchmarks.grid_oracle import Oracle, rounds_of, search_context, target_speed, told
from benchmarks.grid_recorder import LIMITS, Recorder, begin, request
from benchmarks.live_cases import cases
from benchmarks.long_training import LONG_WORKER, TIMEOUT
from benchmarks.peer_searches import PEERS, Tried
from benchmarks.peers import OURS, ReplaySession, Result, account, missed_by, result_of, table_of
from benchmarks.record_grid import repeat, replace_limits
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict

NOISE = 0.03
"""Share by which two measurements of the same speed may differ: probes measure until they know theirs that well."""
ROUNDS = 5
"""In which what was delivered is measured again."""
PROOF_TIME = 6.0
"""Seconds of our proof's training: a run's own are longer, but so is a run's model."""
SEARCHES = tuple(peer for peer in PEERS if peer.name != "grid")
QUICK = ("Composer",)
"""The peers of the smallest case."""


@dataclass
class LiveSession(ReplaySession):
    """Probes of one search, measured where nobody measured them before."""

    recorder: Recorder | None = None

    def point(self, candidate: Candidate) -> GridPoint:
        """Measure a trial, unless another search has."""
        points = self.oracle.grid.points
        if candidate not in points:
            assert self.recorder is not None
            points[candidate] = self.recorder.measure(self.oracle.grid.header, candidate)
        return points[candidate]


def speed_of(candidate: Candidate, outcome: Outcome, context: SearchContext) -> float:
    """Return tokens per second at the global batch; 0 for what did not train, or ended before its speed was known."""
    if isinstance(outcome, Ok) and outcome.timing is not None:
        return target_speed(candidate, outcome, context)
    return 0.0


def ours(definition: Definition, header: GridHeader, folder: Path, proof_time: float) -> Result:
    """Run our default strategy as a user does, to its proven winner."""
    os.environ[VARIABLE] = str(folder / "cache")
    spec = RunSpec(
        model=header.model, device=definition.device_spec(), goal=header.goal, space=header.space,
        space_name=header.name, strategy=OURS, limits=header.limits.model_copy(update={"proof_time": proof_time}),
    )  # fmt: skip
    paths = create_run(spec, folder / "runs")
    delivered: Candidate | None = None
    began = time.monotonic()
    try:
        with WarmLauncher() as launcher:
            tracer = LocalTracer(launcher=launcher)
            executor = find_executor(spec.device, tracer, launcher=launcher)
            delivered = tune(spec, paths, executor, tracer=tracer).candidate
    except AutotuneError as error:
        if read_record(paths.journal).decided is None:
            raise
        print(f"{header.name}, {OURS}: {error}", file=sys.stderr)
    seconds = time.monotonic() - began
    _, tried = account(read_record(paths.journal), header.inspection_seconds)
    return Result(header.name, OURS, "ours", delivered, seconds, tried, keeps_batch=delivered is not None)


def survive(header: GridHeader, candidate: Candidate, executor: Executor) -> Outcome:
    """Train 50 steps of the longest sequences in a fresh process, and return what came of it."""
    steps = search_context(header).batches(candidate).accumulation(candidate.micro_batch).steps
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recording-") as folder:
        finding = executor.run(
            request(header, candidate, "prove", steps), Path(folder) / "long", timeout=TIMEOUT
        )
    assert not isinstance(finding.answer, Inspection)
    return finding.answer


def compared(recorder: Recorder, delivered: list[Candidate], rounds: int, console: Console) -> Oracle:
    """Measure what was delivered again, in alternation, and return all that is known of the case then."""
    known = read_grid(recorder.path)
    for one in delivered:  # ours may be what nobody else has tried
        if one not in known.points:
            recorder.measure(known.header, one)
    points = read_grid(recorder.path).points
    repeat(recorder, [one for one in delivered if isinstance(points[one].outcome, Ok)], rounds, console)
    return Oracle(read_grid(recorder.path))


def rows_of(
    results: list[Result], survived: dict[Candidate, Outcome], oracle: Oracle
) -> list[dict[str, Any]]:
    """Return a line of the record for each search: its share in the rounds, and when ours had measured as much."""
    own = next(result for result in results if result.peer == OURS)
    curve = [(one.ended, speed_of(one.candidate, one.outcome, oracle.context)) for one in own.tried]
    rows = []
    for result in results:
        one = result.delivered
        trained = one is not None and bool(oracle.grid.samples(one))
        share = oracle.share(one) if trained and oracle.speeds else 0.0
        rounds = [] if one is None else rounds_of(oracle.grid, [one]).get(one, ())
        rows.append(
            {
                "grid": result.grid, "peer": result.peer, "how": result.how,
                "delivered": None if one is None else told(one),
                "share": share, "tokens_per_second": statistics.fmean(rounds) if rounds else 0.0,
                "rounds": list(rounds), "equal": trained and bool(oracle.speeds) and one in oracle.equals,
                "survives": one is not None and isinstance(survived[one], Ok),
                "seconds": result.seconds, "probes": len(result.tried), "oom": result.oom(),
                "keeps_global_batch": result.keeps_batch,
                "known_after": known_after(own, one, oracle) if share else 0.0,
                "curve": curve if result.peer == OURS else [],
            }
        )  # fmt: skip
    return rows


def known_after(own: Result, delivered: Candidate | None, oracle: Oracle) -> float | None:
    """Return the seconds until ours had probed what was delivered or what is as fast; None where it never did."""
    assert delivered is not None, "it trained"
    share = min(oracle.share(delivered), 1.0)
    wanted = share * oracle.speeds[oracle.best]

    def as_fast(tried: Tried) -> bool:
        if not isinstance(tried.outcome, Ok):
            return False
        # In the rounds both were measured, which is what tells; else the probe has to say it.
        again = tried.candidate in oracle.grid.repeats and oracle.share(tried.candidate) >= share
        speed = speed_of(tried.candidate, tried.outcome, oracle.context)
        return tried.candidate == delivered or again or speed >= (1 - NOISE) * wanted

    return next((tried.ended for tried in own.tried if as_fast(tried)), None)


def live(definition: Definition, folder: Path, smallest: bool, console: Console) -> list[dict[str, Any]]:
    """Run every search on a case, measure again and train on what each delivered, and return the rows."""
    limits = replace_limits(LIMITS) if smallest else LIMITS
    path = folder / f"{definition.name}.jsonl"
    results = []
    with WarmLauncher() as launcher:
        recorder = Recorder.of(definition, path, launcher)
        append_line(path, begin(definition, recorder, limits))
        oracle = Oracle(read_grid(path))
        header = oracle.grid.header
        for peer in SEARCHES:
            if smallest and peer.name not in QUICK:
                continue
            session = LiveSession(oracle, peer, recorder=recorder)
            results.append(result_of(session))
            console.print(f"{header.name}: {peer.name} ended after {session.elapsed:.0f} s")
        results.append(ours(definition, header, folder, proof_time=1.0 if smallest else PROOF_TIME))
        console.print(f"{header.name}: {OURS} ended after {results[-1].seconds:.0f} s")
        delivered = list(dict.fromkeys(one.delivered for one in results if one.delivered is not None))
        oracle = compared(recorder, delivered, 1 if smallest else ROUNDS, console)
    long = LocalExecutor(find(definition.device_spec()), partial(launch, worker=LONG_WORKER))
    survived = {one: survive(header, one, long) for one in delivered}
    for one, outcome in survived.items():
        console.print(f"{header.name}: {told(one)}: 50 more steps: {outcome.kind}")
    return rows_of(results, survived, oracle)


def unsafe(rows: list[dict[str, Any]]) -> list[str]:
    """Return which configurations of ours did not survive."""
    return [
        f"{OURS} on {row['grid']}: {row['delivered']} does not survive 50 more steps"
        for row in rows
        if row["peer"] == OURS and row["delivered"] is not None and not row["survives"]
    ]


def main() -> int:
    """Compare on every case, print the table, record it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases by name; all without one")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    packages = () if options.smallest else sorted({package for peer in SEARCHES for package in peer.packages})
    if missing := [package for package in packages if installed(package) is None]:
        raise unmeasured("peers_live", f"not installed: {', '.join(missing)} (pip install 'autotune[peers]')")
    if unknown := set(options.names) - {one.name for one in LIVE}:
        raise unmeasured("peers_live", f"no case is called {', '.join(sorted(unknown))}")
    console, rows = Console(width=180), []
    began, load = time.monotonic(), os.getloadavg()[0]
    for definition in cases(options.names, options.smallest):
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recording-") as folder:
            rows += live(definition, Path(folder), options.smallest, console)
    missed = [*missed_by(rows), *unsafe(rows)]
    console.print(table_of(rows, missed))
    for row in rows:
        console.print(
            f"{row['grid']}: {row['peer']}: {row['delivered']}, {row['share']:.1%} of the fastest, "
            f"survives: {row['survives']}"
        )
    versions = {package: installed(package) for package in packages}
    console.print(
        record(
            "peers_live", rows, options.out, smallest=options.smallest, ours=OURS, versions=versions,
            wall_seconds=time.monotonic() - began, load=load, missed=missed,
        )
    )  # fmt: skip
    return verdict([] if options.smallest else missed)


if __name__ == "__main__":
    sys.exit(main())
