"""A whole run on two ranks, from the outside: tuned, proven, exported, and started from what was exported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from autotune.run.best import Best
from autotune.units import MIB, format_bytes
from tests.e2e.conftest import QUICK, autotune, budget, cpu, probes_alive


@pytest.mark.slow
def test_two_ranks_are_tuned_to_a_proven_winner_that_trains_as_it_was_exported(tmp_path):
    each = budget(128 * MIB)
    done = autotune(
        "run", "--model", "tiny-gpt2", "--target-global-batch", "256", "--gpus", "2", "--device", cpu(each),
        "--max-probes", "2", "--strategy", "graph", *QUICK, "--proof-time", "1s", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert probes_alive(tmp_path) == []
    document = done.document
    for trial in document["trials"]:
        by_rank = trial["outcome"]["memory"]["by_rank"]
        memory = trial["outcome"]["memory"]
        assert max(by_rank) == max(memory["device_peak"], memory["reserved"])
        assert len(by_rank) == 2
        assert all(0 < peak <= memory["budget"] for peak in by_rank), "each has a budget of its own"
    best = Best.read(tmp_path / document["run"])
    assert best.model_dump(mode="json") == document["best"]
    assert best.evidence == "measured"
    assert best.proof is not None
    assert best.proof.passed
    assert best.gpus == 2
    assert best.candidate.sharding == "ddp", "the cheapest, and it fits"
    # One sample for each rank, in one step: which of several micro-batches is fastest would be the machine's noise.
    assert best.accumulation.equation() == "256 = 128 x 2 x 1"
    assert best.evaluation_micro_batch == 16, "as many times the training's as are worth looking for"
    assert 1 <= best.proof.evaluation_micro_batch <= 16
    assert f"{format_bytes(each)} each" in done.stderr
    assert "on 2 devices" in done.stderr
    offered = {
        target for target in ("native", "accelerate", "transformers") if f"--to {target}\n" in done.stderr
    }
    assert offered == {"native", "accelerate"}, (
        "of what is sharded DDP alone; the Trainer would keep other buffers"
    )

    folder = tmp_path / "exported"
    written = autotune("export", document["run"], "--to", "native", "--out", str(folder), cwd=tmp_path)
    assert written.code == 0, written.stderr
    assert Best.read(folder) == best
    trained = subprocess.run(
        ["sh", str(folder / "launch.sh"), "--steps", "2"], env={**os.environ, "PYTHON": sys.executable}, cwd="/",
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    losses = [float(line.split()[1]) for line in trained.stdout.splitlines() if line.startswith("loss ")]
    assert losses == pytest.approx(best.proof.losses[:2], abs=1e-3), "the proof's first steps, on both ranks"
