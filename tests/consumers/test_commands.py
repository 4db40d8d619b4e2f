"""Others' training programs as they are, tuned by `autotune run --command` to a proven winner, an OOM on the way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.script.tuned import tuned

pytestmark = pytest.mark.timeout(1500)
"""Each starts a program some ten times, and programs import for seconds."""
HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"


def with_program(folder: Path, name: str) -> None:
    shutil.copy(PROGRAMS / f"{name}.py", folder / "train.py")


def test_a_script_of_deepspeed(folder):
    with_program(folder, "deepspeed_script")
    shutil.copy(PROGRAMS / "deepspeed.json", folder / "ds.json")
    run = tuned(
        folder, "torchrun --standalone --nproc-per-node {gpus} train.py --deepspeed_config ds.json",
        "--axes", "deepspeed", "--max-probes", "5", device="cpu:900MiB", samples=64,
    )  # fmt: skip
    assert (
        run.best.command.keys["ds.json"]["train_micro_batch_size_per_gpu"] == run.best.candidate.micro_batch
    )
