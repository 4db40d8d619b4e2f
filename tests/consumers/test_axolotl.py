"""axolotl reads what was exported, and trains it over the older libraries that it wants (axolotl.txt)."""

import os
import sys
from pathlib import Path

import pytest
import yaml

from autotune.exports import not_proven
from autotune.exports.axolotl import STEPS
from tests.configurations import make_best
from tests.consumers.conftest import PARAMETERS


@pytest.mark.parametrize(
    "options",
    [{"precision": "fp32"}, {"precision": "bf16", "checkpointing": "full", "num_workers": 2}],
    ids=["fp32", "bf16"],
)
def test_axolotl_takes_every_key_as_it_is_written(options, exported):
    from axolotl.utils.schemas.config import AxolotlConfigWCapabilities

    best = make_best(micro_batch=4, steps=5, **options)
    written = yaml.safe_load((exported(best, "axolotl") / "axolotl.yaml").read_text())
    # It ignores keys that it does not know.
    assert set(written) <= set(AxolotlConfigWCapabilities.model_fields)
    here = {"capabilities": {"bf16": True, "n_gpu": 1}, "env_capabilities": {"torch_version": "2.13.0"}}
    config = AxolotlConfigWCapabilities(**written, **here)
    for key, value in written.items():
        if key != "datasets":
            assert getattr(getattr(config, key), "value", getattr(config, key)) == value, key
    assert [(entry.path, entry.type) for entry in config.datasets] == [("data/train.jsonl", "completion")]


def test_axolotl_trains_as_a_run_measured(best_of, train, tmp_path, monkeypatch):
    """In fp32, which it trains as it was measured; Triton and wandb, which it imports always, have stand-ins."""
    best = best_of(precision="fp32", checkpointing="full")
    here = Path(__file__)
    overlays = [
        str(Path(sys.executable).parent.parent / "axolotl"), os.environ["PYTHONPATH"],
        str(here.with_name("without_gpu")), str(here.with_name("without_wandb")),
    ]  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(overlays))
    monkeypatch.setenv("AXOLOTL_DO_NOT_TRACK", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    trained = train(best, "axolotl", *STEPS)
    trained.check(best)
    assert trained.dtypes() == {"torch.float32"}
    for step in trained.ranks[0]["steps"]:
        assert (step["optimizer"], step["fused"], step["dtypes"]) == ("AdamW", True, ["torch.float32"])
        assert step["numbers"] == PARAMETERS
    assert not not_proven(best, "axolotl")
