"""What racing saves: the same searches on this machine's processor, with racing and without.

    python -m benchmarks.racing_saving [--case live-gpt2]

A probe that surely cannot win any more ends early (`autotune/racing.py`). Without, each measures as long as the limits
have it: the executor is then told nothing of what is to be beaten, and all else is alike. Each case is searched by the
default strategy and by `random`, which tries the same candidates whatever they come to. Which of the two goes first
alternates. Counted are the seconds of probes, and of the finals that settle what they left open; traces and proofs are
not. Where the winners differ they are measured again, in rounds of which each measures both.

Targets, over all searches: no more seconds with racing than without; and for each a winner as fast as the one without,
within the margin of 2% at which searches stop, as far as the 95% interval of the rounds' paired differences tells.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.cache_folder import VARIABLE
from autotune.candidate import Candidate, OffloadPlace
from autotune.devices.recorded_grid import append_line
from autotune.executors.executor import Executor, ProbeResult
from autotune.executors.find import find_executor
from autotune.options import Limits, StrategyName
from autotune.outcome import Ok
from autotune.probe.protocol import ProbeRequest, Progress
from autotune.probe.warm import WarmLauncher
from autotune.run.events import Finished
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.search.comparison import MARGIN
from autotune.site import Site
from autotune.specs import RunSpec
from autotune.tracing.client import LocalTracer
from autotune.trial import RematchFinished
from benchmarks.grid_definitions import Definition
from benchmarks.grid_oracle import paired, rounds_of, told
from benchmarks.grid_recorder import LIMITS, Recorder, begin
from benchmarks.live_cases import cases
from benchmarks.peers import OURS
from benchmarks.peers_live import compared
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, verdict

CASES = ("live-qwen", "live-gpt2")
PROBES = 12
"""Of each search, at most."""
ROUNDS = 4


@dataclass(frozen=True)
class Unraced:
    """An executor whose probes know of nothing that they have to beat."""

    executor: Executor

    def describe(self) -> Site:
        """Return the device and its machine."""
        return self.executor.describe()

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:
        """Return the bytes that offloading may use."""
        return self.executor.offload_room(folder, place)

    def run(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ProbeResult:
        """Run a request to its end."""
        alone = request.model_copy(update={"to_beat": None})
        return self.executor.run(alone, folder, timeout=timeout, on_progress=on_progress)


@dataclass(frozen=True)
class Searched:
    """What one search came to."""

    winner: Candidate
    seconds: float
    """Of its probes and finals."""
    finals: float
    """Of these, of the finals."""
    probes: int
    bounded: int
    """How many probes ended early."""

    def row(self) -> dict[str, Any]:
        """Return it for the record."""
        return {"winner": told(self.winner), "seconds": self.seconds, "of_finals": self.finals,
                "probes": self.probes, "ended_early": self.bounded}  # fmt: skip


def search(
    definition: Definition, strategy: StrategyName, limits: Limits, raced: bool, folder: Path
) -> Searched:
    """Search a case to its proven winner, and return what its probes took."""
    spec = RunSpec(
        model=definition.model(), device=definition.device_spec(), goal=definition.goal(),
        space=definition.space().model_dump(mode="json"), space_name=definition.name, strategy=strategy, limits=limits,
    )  # fmt: skip
    paths = create_run(spec, folder)
    with WarmLauncher() as launcher:
        tracer = LocalTracer(launcher=launcher)
        executor = find_executor(spec.device, tracer, launcher=launcher)
        best = tune(spec, paths, executor if raced else Unraced(executor), tracer=tracer)
    run = read_record(paths.journal)
    finals = sum(entry.seconds for entry in run.entries if isinstance(entry, RematchFinished))
    outcomes = [trial.outcome for trial in run.history]
    return Searched(
        best.candidate,
        finals + sum(entry.seconds for entry in run.entries if isinstance(entry, Finished)),
        finals,
        len(outcomes),
        sum(isinstance(one, Ok) and one.bound is not None for one in outcomes),
    )


def share(
    definition: Definition, raced: Candidate, whole: Candidate, path: Path, console: Console
) -> tuple[float, float]:
    """Return how fast one winner is beside another, with the upper end of the interval; measured where they differ."""
    if raced == whole:
        return 1.0, 1.0
    with WarmLauncher() as launcher:
        recorder = Recorder.of(definition, path, launcher)
        append_line(path, begin(definition, recorder, LIMITS))
        oracle = compared(recorder, [raced, whole], ROUNDS, console)
    speeds = rounds_of(oracle.grid, [raced, whole])
    if raced not in speeds or whole not in speeds:
        return (1.0, 1.0) if raced in speeds else (0.0, 0.0)
    mean, half = paired(speeds[raced], speeds[whole])
    return math.exp(mean), math.exp(mean + half)


def missed_by(rows: list[dict[str, Any]]) -> list[str]:
    """Return which targets are missed."""
    raced, whole = (sum(row[name]["seconds"] for row in rows) for name in ("raced", "whole"))
    missed = [f"no more seconds with racing: {raced:.0f} against {whole:.0f}"] if raced > whole else []
    return missed + [
        f"{row['case']}, {row['strategy']}: a winner within {MARGIN:.0%}: {row['winner_share']:.1%} "
        f"({row['raced']['winner']} against {row['whole']['winner']})"
        for row in rows
        if row["winner_share_at_most"] < 1 - MARGIN
    ]


def main() -> int:
    """Search every case both ways, print the table, record it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, help="may be repeated")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    limits = Limits(max_probes=PROBES, sample_time=3.0, proof_time=1.0, speed_tolerance=0.5)
    strategies: tuple[StrategyName, ...] = (OURS, "random")
    if options.smallest:
        strategies = ("random",)
        limits = limits.model_copy(update={"max_probes": 2, "sample_time": 0.3})
    console, load = Console(width=180), os.getloadavg()[0]
    rows: list[dict[str, Any]] = []
    for definition in cases(options.case or CASES, options.smallest):
        for number, strategy in enumerate(strategies):
            with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".racing-saving-") as temporary:
                folder, found = Path(temporary), dict[bool, Searched]()
                os.environ[VARIABLE] = str(folder / "cache")
                for racing in (True, False) if number % 2 else (False, True):
                    name = "with racing" if racing else "without"
                    found[racing] = search(definition, strategy, limits, racing, folder / f"runs-{racing}")
                    console.print(f"{definition.name}, {strategy}, {name}: {found[racing].seconds:.1f} s")
                middle, most = share(
                    definition, found[True].winner, found[False].winner, folder / "winners.jsonl", console
                )
            rows.append(
                {
                    "case": definition.name, "strategy": strategy, "raced": found[True].row(),
                    "whole": found[False].row(), "winner_share": middle, "winner_share_at_most": most,
                }
            )  # fmt: skip
    missed = missed_by(rows)
    table = Table(
        "case", "strategy", "seconds with racing", "without", "ended early", "of", "winner", "without", "its share",
        caption="\n".join(missed or ["no target is missed"]), caption_justify="left",
    )  # fmt: skip
    for row in rows:
        raced, whole = row["raced"], row["whole"]
        table.add_row(
            row["case"], row["strategy"], f"{raced['seconds']:.1f}", f"{whole['seconds']:.1f}",
            str(raced["ended_early"]), str(raced["probes"]), raced["winner"], whole["winner"],
            f"{row['winner_share']:.1%}",
        )  # fmt: skip
    console.print(table)
    totals = {name: sum(row[name]["seconds"] for row in rows) for name in ("raced", "whole")}
    console.print(
        f"{totals['raced']:.0f} s of probes and finals with racing, {totals['whole']:.0f} s without"
    )
    console.print(
        record(
            "racing_saving", rows, options.out, smallest=options.smallest, cases=options.case, load=load,
            missed=missed, **totals,
        )
    )  # fmt: skip
    return verdict([] if options.smallest else missed)


if __name__ == "__main__":
    sys.exit(main())
