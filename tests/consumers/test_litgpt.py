"""LitGPT reads what was exported, by its own parser, and trains a model of the sizes that were measured."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autotune.exports import NOT_PROVEN
from autotune.models.resolve import resolve
from tests.configurations import make_best
from tests.consumers.conftest import LAYERS

PARAMETERS = 125_248
"""Of tiny-llama; LitGPT puts queries, keys and values into one matrix, of as many."""


def read(folder, *more):
    """Return what `litgpt finetune_full` makes of a file before it trains, and of arguments behind it."""
    return subprocess.run(
        [sys.executable, "-m", "litgpt", "finetune_full", "--config", "litgpt.yaml", *more, "--print_config"],
        cwd=folder, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture
def folder(exported):
    best = make_best(
        model=resolve("tiny-llama", base=Path()),
        micro_batch=4,
        steps=5,
        precision="bf16-pure",
        optimizer="momentum",
    )
    written = exported(best, "litgpt")
    (written / "data").mkdir()  # which its data module looks for while it reads
    return written


def test_litgpt_takes_every_key_as_it_is_written(folder):
    done = read(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    taken = yaml.safe_load(done.stdout)

    def compare(written, found, where):
        for key, value in written.items():
            assert key in found, f"{where}{key}"
            if isinstance(value, dict) and where != "optimizer.":
                compare(value, found[key], f"{where}{key}.")
            else:
                assert found[key] == value, f"{where}{key}"

    compare(yaml.safe_load((folder / "litgpt.yaml").read_text()), taken, "")


def test_it_refuses_a_key_that_it_does_not_know(folder):
    text = (folder / "litgpt.yaml").read_text()
    (folder / "litgpt.yaml").write_text(text.replace("micro_batch_size", "micro_batch"))
    assert read(folder).returncode != 0


def test_litgpt_trains_as_many_parameters_as_a_run_measured(best_of, train, tmp_path):
    best = best_of(model="tiny-llama", precision="bf16")
    trained = train(best, "litgpt", "--train.max_steps", "2", inside="LLaMAMLP")
    trained.check(best, before=LAYERS)
    assert trained.dtypes() == {"torch.float32"}
    for step in trained.ranks[0]["steps"]:
        assert (step["optimizer"], step["fused"], step["dtypes"]) == ("AdamW", True, ["torch.float32"])
        assert step["numbers"] == PARAMETERS
    assert "model code of its own" in (tmp_path / "litgpt" / NOT_PROVEN).read_text()
