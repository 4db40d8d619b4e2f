"""How liger-kernel is brought in; what its kernels compute is looked at on a GPU (tests/gpu)."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from transformers.models.llama import modeling_llama

from autotune import environment
from autotune.environment import liger_models
from autotune.techniques.axis import Context
from autotune.techniques.check import refused as refused_in
from autotune.techniques.check import this_machine
from autotune.worker.build import composition
from autotune.worker.build.assembly import assemble
from autotune.worker.build.model_init import construct
from tests.data.requests import request
from tests.numerics.runs import MODELS, plain, train
from tests.reasons import reasons, refused

LIGER = str(Path(__file__).parents[1] / "data" / "liger")


def on_a_gpu(candidate, context):
    """Judge a candidate as for a GPU, whatever it is to run on."""
    return refused_in(candidate, replace(context, kind="cuda"))


@pytest.fixture
def liger(monkeypatch):
    """Let a processor take liger's kernels, as `cuda` may, from a package that stands in for it."""
    monkeypatch.setattr(composition, "refused", on_a_gpu)
    monkeypatch.syspath_prepend(LIGER)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "liger_kernel"]:
        del sys.modules[name]


def test_the_model_is_patched_while_it_trains_and_not_after(liger):
    rotate, calls = modeling_llama.apply_rotary_pos_emb, []
    run = train(
        "llama", precision="fp32", kernels="liger", checkpointing="full",
        check=lambda _: calls.append(modeling_llama.apply_rotary_pos_emb.calls),
    )  # fmt: skip
    assert calls == [2 * 2 * 3]  # two blocks, three steps, and each once more in backward
    assert modeling_llama.apply_rotary_pos_emb is rotate
    assert run == plain("llama", "fp32")


def test_what_liger_lacks_is_told(liger, tmp_path, monkeypatch):
    # The model's configuration tells, before it is built.
    unbuilt = tuple(one for one in composition.TECHNIQUES if one is not construct)
    with monkeypatch.context() as changed, refused("kernels", "context"):
        changed.setattr(composition, "TECHNIQUES", unbuilt)
        assemble(request(MODELS["gpt2"], tmp_path, kernels="liger"))
    with refused("kernels", "axes"):
        assemble(request(MODELS["llama"], tmp_path, kernels="liger", checkpointing="selective"))
    candidate = request(MODELS["llama"], tmp_path, kernels="liger").candidate
    assert liger_models() == {"llama"}  # told without importing it
    monkeypatch.setattr(environment, "installed", lambda name: "0.8" if name == "liger-kernel" else None)
    assert reasons(candidate, Context(source=MODELS["llama"], machine=this_machine())) == []
    for name in ("gpt2", "own"):
        context = Context(source=MODELS[name], machine=this_machine())
        assert reasons(candidate, context) == [("kernels", "context")]
    monkeypatch.undo()
    with refused("kernels", "device"):
        assemble(request(MODELS["llama"], tmp_path, kernels="liger"))


def test_a_missing_package_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(composition, "refused", on_a_gpu)
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with refused("kernels", "package"):
        assemble(request(MODELS["llama"], tmp_path, kernels="liger"))
