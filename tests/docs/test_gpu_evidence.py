"""The script that gathers evidence on a GPU runs in whole on a simulated one, and repeats nothing."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from autotune.devices.recorded_grid import GridHeader, RecordedGrid, read_grid
from autotune.testing.arithmetic import Arithmetic
from autotune.testing.grids import arithmetic_lines
from autotune.units import MIB
from benchmarks.gpu_cases import MICRO_BATCHES, MODELS, RUNGS, VARIANTS, cases, ladder
from benchmarks.gpu_evidence import STATE, unpack
from benchmarks.gpu_grid import FILE, PARTS, TRIALS, definition

ROOT = Path(__file__).parents[2]
CALLS = 12
"""To the end of a dry run; one is enough, where the machine is not busy with others."""


def ended(said: str) -> bool:
    """Tell whether every case did: the last line is `N of N cases ended, ...`."""
    found = re.search(r"^(\d+) of (\d+) cases ended", said, re.MULTILINE)
    return found is not None and found[1] == found[2]


def call(folder: Path) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_evidence", "--device", "sim", "--minutes", "1", "--out", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "AUTOTUNE_CACHE": str(folder / "cache")},
    )  # fmt: skip
    return done, [json.loads(line) for line in (folder / STATE).read_text().splitlines()]


def test_a_dry_run_runs_every_part_and_a_second_call_none(tmp_path: Path) -> None:
    for _ in range(CALLS):
        done, lines = call(tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        if ended(done.stdout):
            break
    results = {line["case"]: line["result"] for line in lines if "result" in line}
    sections = {name.split()[0] for name in results}
    assert sections == {
        "doctor", "facts", "test_device", "given", "run", "engines", "memory", "grid", "launchers",
    }  # fmt: skip
    assert "autotune" in results["doctor"]["said"]
    assert results["given back"]["measured"]["verdict"] == "oom"
    for name in ("run without predictions", "run with predictions"):
        assert results[name]["evidence"] == "predicted", results[name]
    memory = [found for name, found in results.items() if name.startswith("memory")]
    assert all(found["measured"] == found["predicted"] for found in memory), "both are predictions"
    for found in memory:
        roofline = found["roofline"]
        assert 0 < roofline["bound"] < found["predicted"]["global_step"], (
            "no engine is faster than its data sheet"
        )
        assert roofline["busiest"] == "launch", "of so small a model"
    assert {"matrix", "attention", "memory", "launch"} == results["engines"]["shares"].keys()
    grid = read_grid(tmp_path / FILE)
    assert len(grid.points) == results["grid begin"]["trials"] == results["grid part 1"]["recorded"]
    assert results["grid replay"]["winner"], results["grid replay"]
    again, more = call(tmp_path)
    assert again.returncode == 0, again.stderr
    assert [line for line in more[len(lines) :] if "call" not in line] == []


def test_a_wheel_is_found_without_being_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "brought_along-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("brought_along.py", "HERE = True\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "/earlier")
    assert unpack(wheels, tmp_path / "unpacked") == ["brought_along-1.0-py3-none-any.whl"]
    assert __import__("brought_along").HERE
    assert os.environ["PYTHONPATH"] == os.pathsep.join([str(ROOT), str(tmp_path / "unpacked"), "/earlier"])


def test_on_a_gpu_every_case_has_a_name_of_its_own() -> None:
    attachments = SimpleNamespace(folder=ROOT)
    bench: Any = SimpleNamespace(dry=False, spec="cuda", attachments=attachments, launcher=None)
    found = [case.name for case in cases(bench)]
    assert len(found) == len(set(found))
    assert len(set(ladder())) == RUNGS
    for section, count in (("memory", RUNGS * len(MICRO_BATCHES) * len(MODELS)), ("variant", len(VARIANTS))):
        assert sum(name.startswith(section + " ") for name in found) == count
    assert [case.seconds for case in cases(bench) if case.seconds <= 0] == []


def test_the_parts_of_a_grid_are_as_many_as_it_has_trials() -> None:
    asked = definition("cuda", dry=False)
    lines = list(arithmetic_lines(Arithmetic(budget=600).in_units(MIB), asked.space(), target=asked.target))
    assert isinstance(lines[0], GridHeader)
    assert -(-len(RecordedGrid.of(lines, "arithmetic").points) // TRIALS) == PARTS


def under(cache: Path) -> list[int]:
    """Return the processes that were started with a cache of traces: the script's, whoever their parent is now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("AUTOTUNE_CACHE") == str(cache):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.timeout(1500)
def test_killed_at_random_the_script_repeats_nothing_and_comes_to_its_end(tmp_path: Path) -> None:
    """`kill -9`, wherever it is: in a trial of the grid, between that and its state, while it starts."""
    drawn, killed = random.Random(14), 0
    work = tmp_path / "work"  # what a killed process leaves of its folders lies in the one that it runs in
    work.mkdir()
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "AUTOTUNE_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "benchmarks.gpu_evidence", "--device", "sim", "--minutes", "1", "--out", str(tmp_path),
        "--again", "given-up",
    ]  # fmt: skip
    whole = False
    for _ in range(60):
        with subprocess.Popen(
            command, cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                said, _ = process.communicate(timeout=drawn.uniform(1, 12) if killed < 12 else None)
                assert "Traceback" not in said
                whole = ended(said)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                killed += 1
        if whole:
            break
    assert whole
    assert killed >= 3
    until = time.monotonic() + 60
    while left := under(tmp_path / "cache"):
        assert time.monotonic() < until, f"{left} are left of calls that were killed"
        time.sleep(0.2)
    results: set[str] = set()
    for line in (json.loads(line) for line in (tmp_path / STATE).read_text().splitlines()):
        if "began" in line:
            assert line["case"] not in results, "begun again after it had ended"
        elif "result" in line:
            assert "failed" not in line["result"], line
            results.add(line["case"])
    grid = read_grid(tmp_path / FILE)  # refuses a trial that was recorded twice
    assert len(grid.points) == len(grid.traces) * 2
