"""How a sweep scales: processor time and memory of the controller for each probe, with few cells and with many.

    python -m benchmarks.sweep_scale [--cells 100 1000 10000] [--probes 20]

Whole nights go through the real controller: runs with their journals, folders and reports, the night's journal, the
store of results. Only the devices are not there: 500 places answer at once, by arithmetic, so that all processor time
is the controller's. Each number of cells has a process of its own, whose memory is read from the kernel at its end.

Targets: at most 20 ms of processor time for each probe, so that one core feeds 500 devices whose probes take ten
seconds; no quadratic step: the most cells take at most 1.3 times as much for each probe as the fewest; and at most
2 GiB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.sweep.asked import AskedSweep
from autotune.sweep.execution import Hands
from autotune.sweep.night import new_night
from autotune.sweep.start import run_night
from autotune.testing.arithmetic import Arithmetic
from autotune.units import GIB, MIB, format_bytes
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, verdict
from tests.fakes.executor import ArithmeticExecutor

EACH, GROWTH, MEMORY = 0.020, 1.3, 2 * GIB
"""Targets: processor seconds for each probe, their growth with the number of cells, and bytes."""
CELLS, PROBES, PLACES = (100, 1_000, 10_000), 20, 500
MODELS = ("gpt2", "gpt2-medium", "tiny-gpt2", "tiny-llama", "pythia-160m")
HARDWARE = 5
DEVICE = Arithmetic(budget=100_000).in_units(MIB)
"""On which everything fits, so that the limit of probes ends each search."""


class Answers:
    """Answers every request of every run by arithmetic."""

    def hands(self, *_: object) -> AbstractContextManager[Hands]:
        """Give a run an executor of its own; nothing is predicted, so nothing is traced."""
        return nullcontext(Hands(ArithmeticExecutor(DEVICE), None))  # type: ignore[arg-type]


def sweep_file(cells: int, probes: int) -> dict[str, Any]:
    """Return a sweep of so many cells, on 500 places of five kinds."""
    goals = {
        f"goal{number}": {
            "target_global_batch": f"{1024 + number} samples", "seq_len": 64, "strategy": "random", "predict": False,
        }
        for number in range(-(-cells // (len(MODELS) * HARDWARE)))
    }  # fmt: skip
    return {
        "name": "scale",
        "matrix": {
            "model": MODELS,
            "hardware": [f"hardware{n}" for n in range(HARDWARE)],
            "goal": list(goals),
        },
        "hardware": {
            f"hardware{number}": {"device": f"cpu:{number + 1}GiB", "at_once": PLACES // HARDWARE}
            for number in range(HARDWARE)
        },
        "goals": goals,
        "limits": {"max_probes": probes, "training_time": 1},
        "cells_at_once": PLACES,
        "results": "results",
    }


def night(cells: int, probes: int) -> dict[str, Any]:
    """Run a night of so many cells, at the least; return what it took of this process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.yaml"
        file.write_text(json.dumps(sweep_file(cells, probes)))
        began = time.process_time()
        asked = AskedSweep.read(file, lambda device, _: device, lambda: 1 << 50)
        planned = time.process_time()
        ended = run_night(asked, new_night("scale", Path(folder) / "runs"), execution=Answers())
        seconds = time.process_time() - planned
        entries = ended.record.ended.values()
        count = sum(entry.probes for entry in entries)
        states = sorted({entry.state for entry in entries})
    return {
        "cells": len(entries), "probes": count, "states": states, "plan_seconds": planned - began, "seconds": seconds,
        "seconds_per_probe": seconds / max(1, count),
        "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the nights, print what they took, and record it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cells", nargs="+", type=int, default=list(CELLS))
    parser.add_argument("--probes", type=int, default=PROBES)
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--night", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.night is not None:
        print(json.dumps(night(options.night, options.probes)))
        return 0
    cells, probes = ([25, 50], 2) if options.smallest else (options.cells, options.probes)
    rows = []
    for count in cells:
        command = [
            sys.executable,
            "-m",
            "benchmarks.sweep_scale",
            "--night",
            str(count),
            "--probes",
            str(probes),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    table = Table("cells", "probes", "plan", "processor time", "for each probe", "memory")
    for row in rows:
        table.add_row(
            f"{row['cells']:,}", f"{row['probes']:,}", f"{row['plan_seconds']:.1f} s", f"{row['seconds']:.1f} s",
            f"{1000 * row['seconds_per_probe']:.2f} ms", format_bytes(row["bytes"]),
        )  # fmt: skip
    console = Console()
    console.print(table)
    missed = []
    for row in rows:
        if row["states"] != ["proven"]:
            missed.append(f"every cell is proven: {', '.join(row['states'])}")
    growth = rows[-1]["seconds_per_probe"] / rows[0]["seconds_per_probe"]
    if not options.smallest:
        for row in rows:
            if row["seconds_per_probe"] > EACH:
                missed.append(
                    f"{EACH:g} s for each probe: {row['seconds_per_probe']:.4f} s of {row['cells']:,} cells"
                )
            if row["bytes"] > MEMORY:
                missed.append(
                    f"{format_bytes(MEMORY)}: {format_bytes(row['bytes'])} of {row['cells']:,} cells"
                )
        if growth > GROWTH:
            missed.append(f"no quadratic step: {growth:.2f} times as much for each probe")
    console.print(
        record("sweep_scale", rows, options.out, smallest=options.smallest, growth=growth, places=PLACES)
    )
    return verdict(missed)


if __name__ == "__main__":
    sys.exit(main())
