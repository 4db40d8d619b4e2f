"""LLaMA-Factory reads what was exported. It trains in an environment of its own: it wants an older transformers."""

import sys
import types
from importlib.machinery import ModuleSpec

import pytest
import yaml

from tests.configurations import make_best


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
