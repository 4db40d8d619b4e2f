"""LLaMA-Factory reads what was exported, and trains it over the older libraries that it wants (llamafactory.txt)."""

import os
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import yaml

from autotune.exports import NOT_PROVEN
from tests.configurations import make_best
from tests.consumers.conftest import PARAMETERS, STEPS


@pytest.fixture
def read(monkeypatch):
    """Return its own reading of a file. It imports torchaudio always, of which the registry has CUDA builds alone."""
    absent = types.ModuleType("torchaudio")
    absent.__spec__ = ModuleSpec("torchaudio", None)
    monkeypatch.setitem(sys.modules, "torchaudio", absent)
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")
    from llamafactory.hparams import get_train_args

    return get_train_args


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_llamafactory_takes_every_key_as_it_is_written(checkpointing, exported, read, monkeypatch):
    best = make_best(micro_batch=4, steps=5, precision="bf16", checkpointing=checkpointing, num_workers=2)
    folder = exported(best, "llamafactory")
    monkeypatch.chdir(folder)
    written = yaml.safe_load((folder / "train.yaml").read_text())
    model, data, training, finetuning, _ = read(dict(written))
    assert training.per_device_train_batch_size == 4
    assert training.gradient_accumulation_steps == 5
    assert (training.bf16, finetuning.pure_bf16) == (True, False)
    assert model.disable_gradient_checkpointing == (checkpointing == "none")
    assert model.use_reentrant_gc is False
    assert (data.packing, data.cutoff_len) == (False, 32)
    assert str(model.flash_attn) == "sdpa"


def test_it_refuses_a_key_that_it_does_not_know(exported, read, monkeypatch):
    folder = exported(make_best(), "llamafactory")
    monkeypatch.chdir(folder)
    written = yaml.safe_load((folder / "train.yaml").read_text())
    with pytest.raises(ValueError):
        read({**written, "neat_paking": True})


def test_llamafactory_trains_as_a_run_measured(best_of, train, tmp_path, monkeypatch):
    best = best_of(precision="bf16", checkpointing="full")
    older = Path(sys.executable).parent.parent / "llamafactory"
    stand_in = Path(__file__).with_name("without_torchaudio")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(older), os.environ["PYTHONPATH"], str(stand_in)]))
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    trained = train(best, "llamafactory", f"max_steps={STEPS}")
    trained.check(best)
    assert trained.dtypes() == {"torch.float32"}
    for step in trained.ranks[0]["steps"]:
        assert (step["optimizer"], step["fused"], step["dtypes"]) == ("AdamW", True, ["torch.float32"])
        assert step["numbers"] == PARAMETERS
    assert "transformers up to 5.6" in (tmp_path / "llamafactory" / NOT_PROVEN).read_text()
