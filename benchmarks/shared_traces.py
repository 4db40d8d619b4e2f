"""What a search saves by composing traces of those that it has: whole searches on simulated GPUs, two ways.

    python -m benchmarks.shared_traces [--case tight]

`shared` is how a run traces: up to 64 rungs at a time, by a tracer that remembers. `apart` traces at most 8 at a time,
each time by a tracer that knows nothing of those before. Probes of a simulated GPU take no time, so what a search takes
is its traces. Which of the two goes first alternates, and each begins with an empty cache.

Targets: over all cases at most 0.6 of the seconds; and the same winner, with the same predicted peak to the byte.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from autotune.candidate import Candidate
from autotune.devices.find import check_device
from autotune.executors.find import find_executor
from autotune.options import RunOptions
from autotune.outcome import Ok
from autotune.probe.protocol import ProbeRequest, Progress
from autotune.probe.warm import WarmLauncher
from autotune.run.events import RungTraced
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.run.spec import to_spec
from autotune.search import guided, strategy
from autotune.timeline.timeline import Timeline
from autotune.tracing.cache import TraceCache
from autotune.tracing.client import LocalTracer, Trace, Tracer
from benchmarks.grid_oracle import told
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, verdict

CASES: dict[str, dict[str, str]] = {
    "roomy": {"model": "gpt2", "seq_len": "1024", "target_global_batch": "512K", "device": "sim:h100-80gb"},
    "tight": {"model": "gpt2-xl", "seq_len": "1024", "target_global_batch": "1M", "device": "sim:l4-24gb"},
}
LEAST: dict[str, str] = {
    "model": "tiny-gpt2", "seq_len": "64", "target_global_batch": "4K", "device": "sim:l4-24gb", "space": "minimal",
}  # fmt: skip
APART = 8
AT_MOST = 0.6


class NoKin(TraceCache):
    """A cache that finds what is asked for, and tells of nothing else."""

    def kindred(self, *_: object) -> Iterator[tuple[Candidate, Timeline]]:
        """Yield nothing."""
        return iter(())


@dataclass
class Forgetful:
    """A tracer that begins anew with each request, but for what it has in its cache."""

    make: Callable[[], LocalTracer]

    def trace(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> dict[Candidate, Trace]:
        """Trace as `LocalTracer` does."""
        return self.make().trace(request, folder, timeout=timeout, on_progress=on_progress)


def search(given: dict[str, str], shared: bool, folder: Path) -> dict[str, Any]:
    """Search a case to its end; return what it took and came to."""
    spec = to_spec(RunOptions.load(dict(given), "options"), check_device, folder)
    paths = create_run(spec, folder)
    began = time.perf_counter()
    with WarmLauncher() as launcher:

        def make() -> LocalTracer:
            return LocalTracer((TraceCache if shared else NoKin)(folder / "traces"), launcher)

        tracer: Tracer = make() if shared else Forgetful(make)
        executor = find_executor(spec.device, tracer, launcher=launcher)
        with patch.object(guided, "TRACED_AT_A_TIME", strategy.TRACED_AT_A_TIME if shared else APART):
            best = tune(spec, paths, executor, tracer=tracer)
    seconds, run = time.perf_counter() - began, read_record(paths.journal)
    peaks = [
        trial.outcome.memory.peak()
        for trial in run.history
        if trial.candidate == best.candidate and isinstance(trial.outcome, Ok)
    ]
    return {
        "seconds": seconds, "winner": told(best.candidate), "peak": max(peaks), "trials": len(run.history),
        "rungs": sum(isinstance(entry, RungTraced) for entry in run.entries),
    }  # fmt: skip


def missed_by(rows: list[dict[str, Any]]) -> list[str]:
    """Return which targets are missed."""
    shared, apart = (sum(row[name]["seconds"] for row in rows) for name in ("shared", "apart"))
    missed = [f"at most {AT_MOST:g} of the seconds: {shared:.0f} of {apart:.0f}"] * (shared > AT_MOST * apart)
    return missed + [
        f"{row['case']}: the same winner: {row['shared']['winner']} ({row['shared']['peak']:,} bytes) against "
        f"{row['apart']['winner']} ({row['apart']['peak']:,})"
        for row in rows
        if any(row["shared"][name] != row["apart"][name] for name in ("winner", "peak"))
    ]


def main() -> int:
    """Search every case both ways, print the table, record it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="may be repeated")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    cases = {"least": LEAST} if options.smallest else {name: CASES[name] for name in options.case or CASES}
    console, load = Console(width=180), os.getloadavg()[0]
    rows: list[dict[str, Any]] = []
    for number, (name, given) in enumerate(cases.items()):
        found: dict[str, Any] = {"case": name, "options": given}
        for shared in (True, False) if number % 2 else (False, True):
            way = "shared" if shared else "apart"
            with tempfile.TemporaryDirectory(prefix="shared-traces-") as folder:
                found[way] = search(given, shared, Path(folder))
            console.print(f"{name}, {way}: {found[way]['seconds']:.1f} s, {found[way]['rungs']} rungs")
        rows.append(found)
    missed = missed_by(rows)
    table = Table(
        "case", "shared", "apart", "ratio", "rungs", "apart", "winner",
        caption="\n".join(missed or ["no target is missed"]), caption_justify="left",
    )  # fmt: skip
    for row in rows:
        shared, apart = row["shared"], row["apart"]
        table.add_row(
            row["case"], f"{shared['seconds']:.1f} s", f"{apart['seconds']:.1f} s",
            f"{shared['seconds'] / apart['seconds']:.2f}", str(shared["rungs"]), str(apart["rungs"]), shared["winner"],
        )  # fmt: skip
    console.print(table)
    console.print(
        record(
            "shared_traces", rows, options.out, smallest=options.smallest, cases=options.case, load=load,
            missed=missed, at_a_time={"shared": strategy.TRACED_AT_A_TIME, "apart": APART},
        )
    )  # fmt: skip
    return verdict([] if options.smallest else missed)


if __name__ == "__main__":
    sys.exit(main())
