"""How a run ends that is interrupted, finds the disk full or nothing that fits, or meets a bug. No speed counts."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

from autotune.candidate import Candidate
from autotune.units import MIB, format_bytes
from tests.e2e.conftest import AUTOTUNE, QUICK, ROOMY, autotune, budget, cpu, probes_alive, tiny

pytestmark = pytest.mark.slow


def interrupted(folder: Path, number: int, place: str, *arguments: str) -> tuple[int, str]:
    """Run a command until its worker is at a place, then send it a signal; return its exit code and what it said."""
    process = subprocess.Popen(
        [*AUTOTUNE, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    before = {path: path.stat().st_mtime_ns for path in folder.glob(place)}
    while {path: path.stat().st_mtime_ns for path in folder.glob(place)} == before:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    if place.endswith("0001/request.json") and not before:
        second = autotune("resume", "last", cwd=folder)
        assert second.code == 2
        assert "another autotune" in second.stderr
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


def test_interruptions_in_the_same_place_change_nothing_and_say_how_to_resume(tmp_path):
    # One sequence a step leaves one candidate: with its probe lost there would be no winner.
    run = [
        "run",
        "--model",
        "tiny-gpt2",
        "--target-global-batch",
        "128",
        "--device",
        "cpu:1GiB",
        "--no-predict",
        "--launcher",
        "cold",  # a forked probe of so small a model ends before a second command has started
        *QUICK,
    ]
    probe, proof = "runs/*/probes/0001/request.json", "runs/*/probes/0001-proof/request.json"
    for signal_, code, place, arguments in (
        (signal.SIGINT, 130, probe, run),
        (signal.SIGINT, 130, probe, ["resume"]),
        (signal.SIGTERM, 143, probe, ["resume"]),
        (signal.SIGHUP, 129, proof, ["resume"]),
    ):
        ended, said = interrupted(tmp_path, signal_, place, *arguments)
        assert ended == code, said
        assert "autotune resume runs/" in said
        assert "Traceback" not in said
        assert probes_alive(tmp_path) == []
    done = autotune("resume", "last", "--json", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert [trial["outcome"]["kind"] for trial in done.document["trials"]] == ["ok"]
    assert done.document["decided"]["winner"] == 1
    assert done.document["best"]["proof"]["passed"]
    assert done.document["unknown"] == done.document["best"]["unknown"] == []


def test_a_full_disk_loses_nothing_and_says_how_to_go_on(tmp_path):
    # A limit on the size of files refuses writes to the journal as a full disk does. It is set while the tuner runs, to
    # the size that the journal has when a probe is finished.
    arguments = [
        "run",
        "--model",
        "tiny-gpt2",
        "--target-global-batch",
        "1K",
        "--space",
        "basic",
        "--device",
        ROOMY,
        "--max-probes",
        "2",
        *QUICK,
    ]
    running = subprocess.Popen(
        [*AUTOTUNE, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while running.poll() is None:
        written = b"".join(path.read_bytes() for path in tmp_path.glob("runs/*/journal.jsonl"))
        if b'"type":"finished"' in written:
            resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (len(written), resource.RLIM_INFINITY))
            break
        time.sleep(0.01)
    _, told = running.communicate(timeout=280)
    assert running.returncode == 1, told
    assert "cannot be written" in told
    assert "go on with: autotune resume runs/" in told
    assert "Traceback" not in told
    assert probes_alive(tmp_path) == []
    finished = autotune("report", "last", "--json", cwd=tmp_path).document["trials"]
    assert finished
    resumed = autotune("resume", "last", "--json", cwd=tmp_path)
    assert resumed.code == 0, resumed.stderr
    kept = resumed.document["trials"][: len(finished)]
    # An interval learns from later measurements.
    recorded = (
        "number",
        "candidate",
        "node",
        "why",
        "outcome",
        "seconds",
    )
    assert [[trial[name] for name in recorded] for trial in kept] == [
        [trial[name] for name in recorded] for trial in finished
    ]


def test_when_nothing_fits_it_says_how_much_is_missing(tmp_path):
    least = budget(64 * MIB)  # the embedding alone takes 128 MiB, and no rung cuts it
    large = tiny(tmp_path, n_embd=512, vocab_size=65536)
    done = autotune(
        "run", "--model", large, "--target-global-batch", "256", "--device", cpu(least), *QUICK,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 3
    assert f"nothing fits {format_bytes(least)}" in done.stderr
    assert "at least" in done.stderr
    record = autotune("report", "last", "--json", cwd=tmp_path).document
    assert Candidate.model_validate(record["trials"][-1]["candidate"]).offload == "full"


def test_a_bug_in_the_users_model_stops_the_run_with_its_traceback(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Mine(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(4, 4)\n"
        "    def forward(self, x):\n"
        "        raise ValueError('a bug of my own')\n"
        "def build():\n"
        "    return Mine(), lambda micro_batch, seq_len: {'x': torch.zeros(micro_batch, 4)}\n"
    )
    done = autotune(
        "run",
        "--model",
        "mine:build",
        "--target-global-batch",
        "1K",
        "--device",
        ROOMY,
        *QUICK,
        cwd=tmp_path,
    )
    assert done.code == 4
    assert "ValueError: a bug of my own" in done.stderr
    assert "mine.py" in done.stderr
