"""The smallest case of every benchmark runs, and each says its targets and exits with 1 where one is missed."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.environment import installed
from benchmarks import verdict
from benchmarks.recording import RESULTS, record

ROOT = Path(__file__).parents[2]
SIDE_BY_SIDE = (
    "coverage", "step_time", "memory_accuracy", "memory_accuracy --part 2", "memory_accuracy --part 3", "techniques",
    "largest_model", "gpu_ladder",
)  # fmt: skip
"""Run in one process, in this order: `coverage` forks before anything runs, and the stand-in for CUDA that `step_time`
traces on comes before a real backward pass."""
UNMEASURED = {"gpu_ladder": "GPU", "memory_accuracy --part 3": "gpu_ladder"}
"""What cannot be measured where there is no GPU, and what its line names."""
PAGES = {
    "techniques_page": "techniques.md",
    "ranks_page": "ranks.md",
    "records_page": "runs.md",
    "gpu_report": "gpu.md",
}
WORKERS = {"long_training_worker", "fault_worker"}
TRIED_ELSEWHERE = {
    "faults": "tests/run/test_faults.py", "gpu_evidence": "tests/docs/test_gpu_evidence.py",
    "gpu_wheels": "tests/docs/test_gpu_wheels.py",
}  # fmt: skip
"""Have a test of their own, which runs their smallest cases."""
NEEDED = {"peers": ("accelerate", "lightning")}
"""Packages of extras that a benchmark cannot do without, and names where they are missing."""
HISTORY = "older_commit"
"""Checks a commit out, which a source distribution cannot."""
BROWSER = "page_opening"
"""Opens pages in Chromium, which `make test` does not ask for."""
SCRIPTS = [path.stem for path in sorted((ROOT / "benchmarks").glob("*.py")) if "__main__" in path.read_text()]
ALONE = sorted(
    {*SCRIPTS} - {command.split()[0] for command in SIDE_BY_SIDE} - {*PAGES, *TRIED_ELSEWHERE} - WORKERS
)
"""All others, a new one too: they start processes of their own."""


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "AUTOTUNE_CACHE": str(folder / "cache"), "COLUMNS": "200"},
    )  # fmt: skip


@pytest.mark.parametrize("script", sorted({*SCRIPTS} - {*PAGES, *TRIED_ELSEWHERE} - WORKERS))
def test_a_benchmark_says_its_targets(script: str) -> None:
    path = ROOT / "benchmarks" / f"{script}.py"
    assert "arget" in (ast.get_docstring(ast.parse(path.read_text())) or "")


@pytest.mark.timeout(900)  # half a minute of arithmetic, on a machine that may be busy
def test_smallest_cases_run_and_a_missing_gpu_is_named_in_one_line(tmp_path: Path) -> None:
    done = run(["tests.docs.on_benchmarks", str(tmp_path), *SIDE_BY_SIDE], tmp_path)
    found = json.loads(done.stdout.splitlines()[-1])
    measured = {command for command, code in found.items() if code == verdict.MET}
    if not list(RESULTS.glob("gpu_ladder-*.json")):
        assert measured >= set(SIDE_BY_SIDE) - set(UNMEASURED), (found, done.stderr)
    for command in set(found) - measured:
        assert found[command] == verdict.UNMEASURED, found[command]
        (line,) = [
            line for line in done.stderr.splitlines() if line.startswith(command.split()[0] + ": nothing was")
        ]
        assert UNMEASURED[command] in line
    records = {path.name for path in tmp_path.glob("*.json")}
    assert records >= {"step_time-smallest.json", "memory_accuracy-part2-smallest.json"}
    assert all(name.endswith("-smallest.json") for name in records)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", ALONE)
def test_the_smallest_case_that_starts_processes_runs(script: str, tmp_path: Path) -> None:
    done = run([f"benchmarks.{script}", "--smallest", "--out", str(tmp_path)], tmp_path)
    if missing := [package for package in NEEDED.get(script, ()) if installed(package) is None]:
        assert done.returncode == verdict.UNMEASURED, done.stderr
        assert missing[0] in done.stderr
        return
    if script == HISTORY and not (ROOT / ".git").exists():
        assert done.returncode == verdict.UNMEASURED, done.stderr
        assert "cannot be checked out" in done.stderr
        return
    if script == BROWSER and done.returncode == verdict.UNMEASURED:
        assert "Chromium" in done.stderr
        return
    assert done.returncode == verdict.MET, done.stderr
    assert (tmp_path / f"{script}-smallest.json").is_file()


@pytest.mark.parametrize("script", PAGES)
def test_a_page_is_filled_in_place(script: str, tmp_path: Path) -> None:
    docs = shutil.copytree(ROOT / "docs", tmp_path / "docs")
    done = run([f"benchmarks.{script}", "--write", str(docs / PAGES[script])], tmp_path)
    assert done.returncode == verdict.MET, done.stderr
    for page in docs.rglob("*.md"):
        assert page.read_text() == (ROOT / "docs" / page.relative_to(docs)).read_text()


def test_a_missed_target_is_printed_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict.verdict([]) == 0
    assert verdict.verdict(["a median error of at most 5%: 7%"]) == 1
    assert capsys.readouterr().err == "target missed: a median error of at most 5%: 7%\n"


def test_some_cases_leave_the_record_of_all_as_it_is(tmp_path: Path) -> None:
    of_all = record("seconds", [{"case": "small"}, {"case": "large"}], tmp_path)
    before = of_all.read_text()
    of_one = record("seconds", [{"case": "small"}], tmp_path, cases=["small"])
    assert of_one.name == "seconds-small.json"
    assert of_all.read_text() == before


def test_a_prediction_that_is_off_misses_its_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from benchmarks import memory_accuracy

    row = memory_accuracy.Row("m", "fp32", "none", "adamw", 1, measured=1000, predicted=1100)
    monkeypatch.setattr(memory_accuracy, "part_one", lambda *_: [row])
    monkeypatch.setattr(sys, "argv", ["memory_accuracy", "--out", str(tmp_path)])
    assert memory_accuracy.main() == verdict.MISSED
