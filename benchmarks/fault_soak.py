"""Many runs, one after the other and side by side: nothing may grow. Probes are arithmetic under real supervisors."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import threading
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from autotune.executors.local import LocalExecutor
from autotune.run.folder import load_spec
from autotune.run.loop import tune
from autotune.run.paths import RunPaths
from benchmarks.fault_trial import files_of
from benchmarks.fault_tuner import TRIAL as MARK
from benchmarks.fault_tuner import (
    ArithmeticDevice,
    ArithmeticTracer,
    Hooks,
    alive,
    arithmetic_launch,
    make_run,
)

SETTLED = 10
"""Runs after which a tuner has imported and cached what it ever will."""
GROWTH = 4 * 2**20
"""Bytes that a process may have grown by meanwhile: what malloc keeps, not what a run leaves."""

Row = dict[str, Any]


def soak(folder: Path, runs: int, tuners: int) -> list[Row]:
    """Return what grew in `runs` runs of one tuner, and in as many of several at a time."""
    rows = [_side_by_side(folder / "one", 1, runs), _side_by_side(folder / "many", tuners, runs // tuners)]
    for row in rows:
        print(
            f"{row['tuners']} tuners x {row['runs_each']} runs: memory {row['memory_mib']} MiB, files {row['files']}, "
            f"descriptors {row['descriptors']}, threads {row['threads']}: {', '.join(row['misses']) or 'nothing grew'}"
        )
    return rows


def _side_by_side(folder: Path, tuners: int, runs: int) -> Row:
    mark = f"soak-{os.getpid()}-{tuners}"
    children = [_fork(folder / str(number), runs, mark) for number in range(tuners)]
    misses: list[str] = []
    grown: dict[str, list[str]] = {"memory": [], "files": [], "descriptors": [], "threads": []}
    for pid, read in children:
        with os.fdopen(read) as pipe:
            for line in pipe:
                name, _, value = line.strip().partition("=")
                grown[name].append(value) if name in grown else misses.append(line.strip())
        os.waitpid(pid, 0)
    if left := alive(mark):
        misses.append(f"{len(left)} processes are left")
    told = {name: max(values, key=float, default="unknown") for name, values in grown.items()}
    return {
        "tuners": tuners,
        "runs_each": runs,
        "memory_mib": told["memory"],
        "files": told["files"],
        "descriptors": told["descriptors"],
        "threads": told["threads"],
        "misses": misses,
    }


def _fork(folder: Path, runs: int, mark: str) -> tuple[int, int]:
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        return pid, read
    lines: list[str] = []
    try:
        os.close(read)
        os.environ[MARK] = mark
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        lines = _grown(folder, temporary, runs)
    except BaseException:  # noqa: BLE001 - a fork must never return into the bench
        lines = ["a run failed: " + traceback.format_exc().replace("\n", " | ")]
    finally:
        os.write(write, "".join(f"{line}\n" for line in lines).encode())
        os._exit(0)


def _grown(folder: Path, temporary: Path, runs: int) -> list[str]:
    """Run so many times, and return what grew after the first few."""
    executor = LocalExecutor(ArithmeticDevice(), partial(arithmetic_launch, Hooks()))
    misses, first, files = [], _held(), frozenset[str]()
    settled = min(SETTLED, runs // 2)
    for number in range(runs):
        root = make_run("processes", folder / "runs")
        paths = RunPaths(root)
        best = tune(load_spec(paths), paths, executor, tracer=ArithmeticTracer())
        assert best.proof is not None
        assert best.proof.passed
        found = files_of(root)
        if number == 0:
            files = found
        if found != files:
            misses.append(f"run {number + 1} has other files: {', '.join(sorted(found ^ files)[:3])}")
        shutil.rmtree(root)
        if number == settled:
            first = _held()
    now = _held()
    misses += [
        f"{now[name] - first[name]} more {name}"
        for name in ("descriptors", "threads")
        if now[name] > first[name]
    ]
    if (memory := now["memory"] - first["memory"]) > GROWTH:
        misses.append(f"{memory / 2**20:.1f} MiB more memory")
    if left := len(list(temporary.iterdir())):
        misses.append(f"{left} files left in TMPDIR")
    return [
        f"memory={memory / 2**20:.1f}",
        f"files={left}",
        *(f"{name}={now[name] - first[name]}" for name in ("descriptors", "threads")),
        *misses,
    ]


def _held() -> dict[str, int]:
    """Return what this process holds: bytes of resident memory, descriptors, threads."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return {
        "memory": resident,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }
