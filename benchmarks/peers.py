"""Our strategies beside the searches of others: same cases, same trainer, the same account of seconds.

    python -m benchmarks.peers [GRID.jsonl ...]      over recorded grids (benchmarks/data/grids), nothing is trained

`benchmarks.peers_live` does the same with real probes. Each search asks for probes and is answered from the grid, at
the cost in seconds that was recorded, so the same run gives the same table. `peer_searches.py` says what each search
is, and which are the installed libraries. `graph` and our other strategies are whole runs on `--device replay:FILE`;
`random` and `grid` predict nothing. Charged are all seconds of probes, of traces and of the inspection. A search
whose trials share one process pays for start and imports once, and for as many optimizer steps as it takes (those
that go on with one model, for building it once); every other probe is a process of its own. What the tuner's own
decisions take is not charged. Speeds are those of the delivered configuration at the global batch, as a share of the
fastest of the grid that leaves the headroom free; what cannot be told from that counts as it. A peer that knows no
headroom may so come to more than 100%.

Start-up: a process of others imports the libraries, as long as a cold worker was recorded to; ours are forked from a
server, whose own start the inspection waited for (`random` and `grid` inspect nothing, and wait for it themselves).

The anytime curve: `known_after` is when ours (the default strategy) has measured a configuration at least as fast as
the one that the peer delivers, beside the seconds after which the peer ends.

Targets, of the default strategy over all grids: at least 99% of the fastest in the median and 97% at worst; at most 6
probes in the median; at most 1 of a grid out of memory; and what each peer delivers is known no later than it ends.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.candidate import Candidate
from autotune.devices.recorded_grid import GridPoint, RecordedGrid, read_grid
from autotune.environment import installed
from autotune.errors import AutotuneError
from autotune.executors.find import find_executor, find_tracer
from autotune.options import Limits, StrategyName
from autotune.outcome import Ok, Oom, Outcome
from autotune.run.events import Finished, RungTraced
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.run.record import Record
from autotune.search.shipped import load_space
from autotune.search.strategies import STRATEGIES
from autotune.specs import DeviceSpec, RunSpec
from autotune.testing.arithmetic import Arithmetic
from autotune.testing.grids import arithmetic_lines, write_grid
from autotune.trial import RematchFinished
from autotune.units import MIB
from benchmarks.grid_oracle import Oracle, told
from benchmarks.peer_searches import PEERS, Peer, Tried
from benchmarks.record_grid import GRIDS
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict

OURS: StrategyName = "guided"
"""The strategy that targets are of: what runs use where nobody names one."""
BLIND: frozenset[StrategyName] = frozenset({"grid", "random"})
"""Strategies that stand for what others do by hand: they predict nothing, and are asked without a run around them."""
MEDIAN_SHARE, WORST_SHARE, PROBES, OOM = 0.99, 0.97, 6, 1
"""Targets."""
EXHAUSTIVE = 100_000
"""More probes than a grid has."""


@dataclass
class ReplaySession:
    """Probes of one search, answered from a grid."""

    oracle: Oracle
    peer: Peer
    tried: list[Tried] = field(default_factory=list)
    elapsed: float = 0.0
    _started: bool = False
    _built: bool = False

    @property
    def context(self) -> Any:
        """What bounds the search."""
        return self.oracle.context

    @cached_property
    def plain(self) -> Candidate:
        """The plain bf16 rung."""
        return self.oracle.plain()

    def probe(self, candidate: Candidate, steps: int | None = None) -> Outcome:
        """Return what was recorded, and charge what the search would have waited. Raises KeyError where nothing was."""
        point = self.point(candidate)
        self.elapsed += self._cost(point, steps)
        self.tried.append(Tried(candidate, point.outcome, self.elapsed))
        return point.outcome

    def point(self, candidate: Candidate) -> GridPoint:
        """Return the trial of a candidate."""
        return self.oracle.grid.points[candidate]

    def seconds_of(self, candidate: Candidate) -> float:
        """Return the recorded seconds of a global step."""
        point = self.oracle.grid.points[candidate]
        assert isinstance(point.outcome, Ok)
        assert point.outcome.timing is not None, "nothing ends a recorded trial early"
        return point.outcome.timing.global_step(point.accumulation_steps)

    def _cost(self, point: GridPoint, steps: int | None) -> float:
        cold, warm, build = (
            self.oracle.grid.header.cold_start_seconds, point.start_seconds or 0.0, point.build_seconds or 0.0
        )  # fmt: skip
        rest = max(0.0, point.seconds - warm - build)
        if self.peer.warm:
            start = warm if self._started else warm + cold
        else:
            start = 0.0 if self._started and self.peer.in_process else cold
        if steps is not None and isinstance(point.outcome, Ok):
            timing = point.outcome.timing
            assert timing is not None
            rest = min(rest, steps * (timing.last_micro_step.mean + timing.optimizer_step.mean))
        if self.peer.in_process and self.peer.keeps_model and self._built:
            build = 0.0
        self._started, self._built = True, isinstance(point.outcome, Ok)
        return start + build + rest


@dataclass(frozen=True)
class Result:
    """What one search came to on one grid."""

    grid: str
    peer: str
    how: str
    delivered: Candidate | None
    seconds: float
    tried: tuple[Tried, ...]
    keeps_batch: bool

    def oom(self) -> int:
        """Return how many probes ran out of memory."""
        return sum(isinstance(one.outcome, Oom) for one in self.tried)

    def known_after(self, share: float, oracle: Oracle) -> float | None:
        """Return the seconds until a configuration of at least this share was measured; None where none was."""
        for one in self.tried:
            fits = isinstance(one.outcome, Ok) and oracle.context.fits(one.outcome.memory)
            if fits and oracle.share(one.candidate) >= share:
                return one.ended
        return None


def searched(peer: Peer, oracle: Oracle) -> Result:
    """Run a peer's search on a grid."""
    return result_of(ReplaySession(oracle, peer))


def result_of(session: ReplaySession) -> Result:
    """Run a peer's search, and return what it came to."""
    peer, oracle = session.peer, session.oracle
    delivered = peer.search(session)
    keeps = False
    if delivered is not None:
        limit = oracle.context.batches(delivered).limit
        size = delivered.micro_batch
        keeps = limit % size == 0 if peer.keeps_batch else size == limit
    name = oracle.grid.header.name
    return Result(name, peer.name, peer.how, delivered, session.elapsed, tuple(session.tried), keeps)


def run_of(oracle: Oracle, strategy: StrategyName, folder: Path) -> Result:
    """Run one of our strategies as a whole run on the grid."""
    header, path = oracle.grid.header, Path(oracle.grid.source).absolute()
    spec = RunSpec(
        model=header.model, device=DeviceSpec(kind="replay", file=str(path)), goal=header.goal, space=header.space,
        space_name=header.name, strategy=strategy, limits=Limits(max_probes=EXHAUSTIVE),
    )  # fmt: skip
    paths = create_run(spec, folder)
    tracer = find_tracer(spec.device)
    delivered: Candidate | None = None
    try:
        delivered = tune(spec, paths, find_executor(spec.device, tracer), tracer=tracer).candidate
    except AutotuneError as error:
        if read_record(paths.journal).decided is None:
            raise  # the grid lacks something, or the machine
        print(f"{header.name}, {strategy}: {error}", file=sys.stderr)
    seconds, tried = account(read_record(paths.journal), header.inspection_seconds)
    return Result(header.name, strategy, "ours", delivered, seconds, tried, keeps_batch=delivered is not None)


def account(run: Record, inspection: float) -> tuple[float, tuple[Tried, ...]]:
    """Return a run's seconds, and when each of its probes ended: inspection, traces, probes, finals, in order."""
    elapsed, tried = inspection, []
    trials = {trial.number: trial for trial in run.history}
    for entry in run.entries:
        match entry:
            case RungTraced(seconds=seconds) | RematchFinished(seconds=seconds):
                elapsed += seconds
            case Finished(number=number, seconds=seconds):
                elapsed += seconds
                tried.append(Tried(trials[number].candidate, trials[number].outcome, elapsed))
    return elapsed, tuple(tried)


def compare(grid: RecordedGrid, folder: Path) -> list[dict[str, Any]]:
    """Run every search on a grid, and return a row of each, with when ours knew what it delivers."""
    oracle = Oracle(grid)
    results = [run_of(oracle, name, folder / name) for name in STRATEGIES if name not in BLIND]
    results += [searched(peer, oracle) for peer in PEERS]
    ours = next(result for result in results if result.peer == OURS)
    return [row_of(result, ours, oracle) for result in results]


def row_of(result: Result, ours: Result, oracle: Oracle) -> dict[str, Any]:
    """Return one line of the record."""
    share = oracle.share(result.delivered)
    # Nobody has to know a configuration faster than the fastest that leaves the headroom free.
    known = 0.0 if share == 0.0 else ours.known_after(min(share, 1.0), oracle)
    return {
        "grid": result.grid, "peer": result.peer, "how": result.how,
        "delivered": None if result.delivered is None else told(result.delivered),
        "share": share, "seconds": result.seconds, "probes": len(result.tried), "oom": result.oom(),
        "keeps_global_batch": result.keeps_batch, "known_after": known,
        "curve": [[one.ended, oracle.share(one.candidate) if isinstance(one.outcome, Ok) else 0.0]
                  for one in result.tried],
    }  # fmt: skip


def missed_by(rows: list[dict[str, Any]], ours: str = OURS) -> list[str]:
    """Return which targets our strategy misses."""
    own = [row for row in rows if row["peer"] == ours]
    shares, probes = [row["share"] for row in own], [row["probes"] for row in own]
    missed = []
    if (median := statistics.median(shares)) < MEDIAN_SHARE:
        missed.append(f"{ours}: at least {MEDIAN_SHARE:.0%} of the fastest in the median: {median:.1%}")
    missed += [
        f"{ours} on {row['grid']}: at least {WORST_SHARE:.0%} of the fastest: {row['share']:.1%}"
        for row in own
        if row["share"] < WORST_SHARE
    ]
    if (median := statistics.median(probes)) > PROBES:
        missed.append(f"{ours}: at most {PROBES} probes in the median: {median:g}")
    missed += [
        f"{ours} on {row['grid']}: at most {OOM} probe out of memory: {row['oom']}"
        for row in own
        if row["oom"] > OOM
    ]
    for row in rows:
        known = row["known_after"]
        if row["how"] == "ours" or (known is not None and known <= row["seconds"]):
            continue
        when = "never" if known is None else f"after {known:.0f} s"
        missed.append(
            f"{ours} on {row['grid']}: knows what {row['peer']} delivers after {row['seconds']:.0f} s {when}"
        )
    return missed


def table_of(rows: list[dict[str, Any]], missed: Sequence[str] = ()) -> Table:
    """Return all searches over all grids, a line each, with the targets that are missed below."""
    table = Table(
        "search", "how", "of the fastest", "at worst", "seconds", "probes", "OOM", "keeps the batch", "survives",
        "ours knows by", title=f"{len({row['grid'] for row in rows})} grids; medians, OOM probes summed",
        caption="\n".join(("targets that are missed:", *missed) if missed else ("no target is missed",)),
        caption_justify="left",
    )  # fmt: skip
    for peer in dict.fromkeys(row["peer"] for row in rows):
        own = [row for row in rows if row["peer"] == peer]
        in_time = sum(row["known_after"] is not None and row["known_after"] <= row["seconds"] for row in own)
        table.add_row(
            peer, own[0]["how"], f"{statistics.median(row['share'] for row in own):.1%}",
            f"{min(row['share'] for row in own):.1%}", f"{statistics.median(row['seconds'] for row in own):.0f}",
            f"{statistics.median(row['probes'] for row in own):g}", str(sum(row["oom"] for row in own)),
            f"{sum(row['keeps_global_batch'] for row in own)} of {len(own)}",
            # What survives, live runs alone show.
            f"{sum(row['survives'] for row in own)} of {len(own)}" if "survives" in own[0] else "",
            "" if peer == OURS else f"its end in {in_time} of {len(own)}",
        )  # fmt: skip
    return table


def arithmetic_grid(folder: Path) -> Path:
    """Return a small grid that is made of arithmetic, and measured nowhere."""
    # What is not known of a processor's memory is little of it.
    device = Arithmetic(budget=615).in_units(16 * MIB)
    return write_grid(
        folder / "arithmetic.jsonl", arithmetic_lines(device, load_space("minimal"), target="8 samples")
    )


def main() -> int:
    """Compare on every grid, print the tables, record them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "grids", nargs="*", type=Path, help="recorded grids; else those of benchmarks/data/grids"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    needed = {package for peer in PEERS for package in peer.packages}
    if missing := sorted(package for package in needed if installed(package) is None):
        raise unmeasured("peers", f"not installed: {', '.join(missing)} (pip install 'autotune[peers]')")
    console = Console(width=180)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = (
            [arithmetic_grid(folder)] if options.smallest else options.grids or sorted(GRIDS.glob("*.jsonl"))
        )
        if not files:
            raise unmeasured(
                "peers", f"there is no grid in {GRIDS}; python -m benchmarks.record_grid records them"
            )
        for number, path in enumerate(files):
            found = compare(read_grid(path), folder / str(number))
            rows += found
            for row in found:
                known = row["known_after"]
                console.print(
                    f"{row['grid']}: {row['peer']}: {row['share']:.1%} ({row['delivered']}) after {row['seconds']:.0f} "
                    f"s and {row['probes']} probes; {OURS} knew as much "
                    f"{'never' if known is None else f'after {known:.0f} s'}"
                )
    missed = missed_by(rows)
    console.print(table_of(rows, missed))
    versions = {package: installed(package) for package in sorted({*needed, "optuna"})}
    console.print(
        record(
            "peers", rows, options.out, smallest=options.smallest, ours=OURS, versions=versions, missed=missed
        )
    )
    return verdict([] if options.smallest else missed)


if __name__ == "__main__":
    sys.exit(main())
