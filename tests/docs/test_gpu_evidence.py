"""The script that gathers evidence on a GPU runs in whole on a simulated one, and repeats nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu_cases import MICRO_BATCHES, MODELS, RUNGS, VARIANTS, cases, ladder
from benchmarks.gpu_evidence import STATE, unpack

ROOT = Path(__file__).parents[2]


def call(folder: Path) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_evidence", "--device", "sim", "--minutes", "1", "--out", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "AUTOTUNE_CACHE": str(folder / "cache")},
    )  # fmt: skip
    return done, [json.loads(line) for line in (folder / STATE).read_text().splitlines()]


def test_a_dry_run_runs_every_part_and_a_second_call_none(tmp_path: Path) -> None:
    for _ in range(5):  # once is enough, where the machine is not busy with others
        done, lines = call(tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        if "9 of 9 cases" in done.stdout:
            break
    results = {line["case"]: line["result"] for line in lines if "result" in line}
    sections = {name.split()[0] for name in results}
    assert sections == {"doctor", "facts", "test_device", "given", "run", "memory", "launchers"}
    assert "autotune" in results["doctor"]["said"]
    assert results["given back"]["measured"]["verdict"] == "oom"
    for name in ("run without predictions", "run with predictions"):
        assert results[name]["evidence"] == "predicted", results[name]
    memory = [found for name, found in results.items() if name.startswith("memory")]
    assert all(found["measured"] == found["predicted"] for found in memory), "both are predictions"
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
    bench: Any = SimpleNamespace(dry=False)
    found = [case.name for case in cases(bench)]
    assert len(found) == len(set(found))
    assert len(set(ladder())) == RUNGS
    for section, count in (("memory", RUNGS * len(MICRO_BATCHES) * len(MODELS)), ("variant", len(VARIANTS))):
        assert sum(name.startswith(section + " ") for name in found) == count
    assert [case.seconds for case in cases(bench) if case.seconds <= 0] == []
