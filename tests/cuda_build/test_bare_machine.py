"""torch's CUDA build on a Python without autotune: it traces the same bytes, and the evidence's dry run ends well.

`make test-cuda-build` makes that Python (`CUDA_PYTHON`); what it lacks are the wheels of `make gpu-wheels`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_evidence import STATE

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "build" / "gpu-wheels"
FEWEST = 20
"""Candidates whose bytes are compared."""


@pytest.fixture(scope="session")
def bare() -> str:
    return os.environ["CUDA_PYTHON"]


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout that is installed nowhere."""
    there = tmp_path_factory.mktemp("checkout")
    for name in ("autotune", "benchmarks", "docs", "search_spaces", "tests"):
        shutil.copytree(ROOT / name, there / name, ignore=shutil.ignore_patterns("__pycache__", "data/grids"))
    shutil.copy(ROOT / "pyproject.toml", there)
    return there


def environment(checkout: Path, *more: Path) -> dict[str, str]:
    """Nothing but where things are."""
    return {
        "PATH": os.defpath, "HOME": str(checkout / "home"), "AUTOTUNE_CACHE": str(checkout / "cache"),
        "PYTHONPATH": os.pathsep.join(map(str, (checkout, *more))),
    }  # fmt: skip


def evidence(bare: str, checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [bare, "-m", "benchmarks.gpu_evidence", "--device", "sim", "--minutes", "1", *options], cwd=checkout,
        env=environment(checkout), capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_without_wheels_it_says_what_is_missing_and_where_it_comes_from(bare: str, checkout: Path) -> None:
    done = evidence(bare, checkout)
    assert done.returncode == 2
    assert "is not installed" in done.stderr
    assert "make gpu-wheels" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_evidence_runs_as_docs_say(bare: str, checkout: Path) -> None:
    for _ in range(5):  # once is enough, where the machine is not busy with others
        done = evidence(bare, checkout, "--wheels", str(WHEELS))
        assert done.returncode == 0, done.stdout + done.stderr
        state = checkout / "build" / "evidence-dry" / STATE
        lines = [json.loads(line) for line in state.read_text().splitlines()]
        ended, _, known = done.stdout.splitlines()[-1].partition(" of ")
        if ended == known.split()[0]:
            break
    assert ended == known.split()[0], done.stdout
    results = {line["case"]: line["result"] for line in lines if "result" in line}
    call = next(line["call"] for line in lines if "call" in line)
    assert call["versions"]["torch"].startswith("2.11")
    assert "tests collected" in results["test_device"]["said"]


def test_every_file_of_the_tests_that_need_a_gpu_can_be_read_there(bare: str, checkout: Path) -> None:
    unpacked = checkout / "build" / "unpacked-wheels"
    if not unpacked.exists():
        evidence(bare, checkout, "--wheels", str(WHEELS))
    done = subprocess.run(
        [bare, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "tests/gpu"], cwd=checkout,
        env=environment(checkout, unpacked), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_imports_may_be_forked(bare: str, checkout: Path) -> None:
    unpacked = checkout / "build" / "unpacked-wheels"
    if not unpacked.exists():
        evidence(bare, checkout, "--wheels", str(WHEELS))
    program = """if True:
        import json, sys
        from autotune.worker import warm
        warm.preload(json.loads(sys.argv[1]), distributed=True)
        refused = warm.refusal()
        assert not refused, refused
    """
    asked = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    asks = {"AUTOTUNE_PROBE": "0" * 32, "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [bare, "-c", program, asked], cwd=checkout, env={**environment(checkout, unpacked), **asks},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("model", "seq_len"), [("tiny-gpt2", 64), ("llama-3.2-1b", 2048)])
def test_it_traces_the_same_bytes_as_the_build_for_processors(
    bare: str, checkout: Path, tmp_path: Path, model: str, seq_len: int
) -> None:
    unpacked = checkout / "build" / "unpacked-wheels"
    found = []
    for python, environ in ((sys.executable, {**os.environ}), (bare, environment(checkout, unpacked))):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        with (folder / "out").open("w") as out:
            process = subprocess.Popen(
                [python, "-m", "tests.cuda_build.traced", model, str(seq_len), str(folder)],
                cwd=ROOT if python == sys.executable else checkout, env=environ, stdout=out,
            )  # fmt: skip
        found.append((process, folder / "out"))
    lines: list[list[dict[str, Any]]] = []
    for process, path in found:
        assert process.wait() == 0
        lines.append([json.loads(line) for line in path.read_text().splitlines()])
    (ours, *here), (theirs, *there) = lines
    assert ours["cuda"] is None
    assert theirs["cuda"], "the build for GPUs"
    assert theirs["torch"] != ours["torch"]
    bytes_here, bytes_there = (
        {json.dumps(one["candidate"]): one["peaks"] for one in of if one["peaks"]} for of in (here, there)
    )
    both = bytes_here.keys() & bytes_there.keys()
    assert len(both) >= FEWEST
    assert {one: bytes_there[one] for one in both} == {one: bytes_here[one] for one in both}
    broken = [one for one in there if one["reason"].startswith("tracing failed")]
    assert not broken, "a refusal has a reason of its own"
