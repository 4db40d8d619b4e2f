"""Writers of a store that are killed at random, for `benchmarks/results_store.py`: what they told must be there."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autotune.results.find import open_store
from autotune.results.store import Query
from benchmarks.store_rows import rows_of

WRITERS, KILLS = 8, 24


def write(place: str, writer: int, cells: int, log: Path) -> None:
    """Add cells one by one; write down each of which `add` returned."""
    with open_store(place) as store, log.open("a") as told:
        for number in range(cells):
            store.add(rows_of(f"w{writer}-{number:03}", 0, 5))
            told.write(f"w{writer}-{number:03}\n")
            told.flush()


def writers(name: str, place: str, cells: int, kills: int) -> dict[str, Any]:
    """Have processes write, kill them at random, and look at what is there."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="autotune-writers-") as folder, open_store(place) as store:
        logs = [Path(folder) / f"{writer}.txt" for writer in range(WRITERS)]

        def begin(writer: int) -> subprocess.Popen[bytes]:
            command = [
                sys.executable,
                "-m",
                "benchmarks.results_store",
                "--write",
                place,
                str(writer),
                str(cells),
            ]
            return subprocess.Popen([*command, str(logs[writer])])

        running = {writer: begin(writer) for writer in range(WRITERS)}
        killed = lost = 0
        while killed < kills:
            time.sleep(rng.uniform(0.3, 1.2))
            writer = rng.randrange(WRITERS)
            if running[writer].poll() is None:
                running[writer].send_signal(signal.SIGKILL)
                running[writer].wait()
                killed += 1
            there = {row.cell for row in store.cells("nightly")}
            told = {line for log in logs if log.exists() for line in log.read_text().splitlines()}
            # What was told after the store was read is no matter.
            lost += len({one for one in told if one.startswith(f"w{writer}-")} - there - _torn(logs[writer]))
            if running[writer].poll() is not None:
                running[writer] = begin(writer)
        for process in running.values():
            process.wait()
        rows = list(store.query(Query()))
        places = [(row["cell"], row["kind"], row["number"], row["turn"]) for row in rows]
        expected = {f"w{writer}-{number:03}" for writer in range(WRITERS) for number in range(cells)}
        found = {place[0] for place in places}
        return {
            "part": "writers", "store": name, "writers": WRITERS, "killed": killed, "cells": len(found),
            "trials": len(places), "lost": lost + len(expected - found), "twice": len(places) - len(set(places)),
            "incomplete": sum(1 for cell in found if sum(place[0] == cell for place in places) != 5),
        }  # fmt: skip


def _torn(log: Path) -> set[str]:
    """Return the last line of a log that a kill has cut short."""
    text = log.read_text() if log.exists() else ""
    return set() if text.endswith("\n") or not text else {text.splitlines()[-1]}
