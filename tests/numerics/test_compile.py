"""Compiled blocks compute what they did; the whole block is compiled, and once."""

from contextlib import closing

import pytest
import torch
from torch._dynamo.utils import counters

from autotune.train import activation_offload, compiled
from autotune.train.build import assemble
from autotune.train.mapped import MappedFiles
from autotune.train.refusal import CannotRun
from autotune.train.trace import CannotTrace, trace
from tests.data.requests import request
from tests.numerics.runs import MODELS, plain, train


@pytest.fixture
def graphs(monkeypatch):
    """Trace blocks as the compiler does, and run their operators one by one: what is wrapped is what is tested."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    counters.clear()
    yield lambda: (counters["stats"]["unique_graphs"], dict(counters["graph_break"]))
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "fields", [{"checkpointing": "full", "offload": "optimizer"}, {"optimizer_in_backward": True}], ids=str
)
def test_what_is_compiled_is_one_whole_block_and_changes_no_bit(fields, graphs):
    run, reference = (train("llama", precision="fp32", compile=how, **fields) for how in ("regional", "none"))
    assert graphs() == (1, {})
    assert run == reference


def test_a_compiled_blocks_activations_leave_too(graphs, monkeypatch):
    monkeypatch.setattr(activation_offload, "SMALL", 1 << 10)
    moved = []
    copy_of = MappedFiles.copy_of
    monkeypatch.setattr(
        MappedFiles, "copy_of", lambda files, tensor: moved.append(tensor.nbytes) or copy_of(files, tensor)
    )
    run = train("llama", precision="fp32", compile="regional", activation_offload=True)
    assert run == plain("llama", "fp32")
    inside = sum(moved)
    moved.clear()
    train("llama", precision="fp32", activation_offload=True)
    assert inside > sum(moved) / 2
    assert graphs() == (1, {})


@pytest.mark.slow
def test_the_compilers_own_code_agrees_to_fp32s_rounding():
    # Fused operators sum in another order, and fp32 rounds at 2^-24 = 6e-8.
    run = train("llama", precision="fp32", compile="regional")
    reference = plain("llama", "fp32")
    assert run.losses == pytest.approx(reference.losses, rel=1e-5)
    assert 0 < run.gradient_error(reference) < 1e-4


def test_what_compile_lacks_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CannotRun, match="needs a C\\+\\+ compiler"):
        assemble(request(MODELS["llama"], tmp_path, compile="regional"))
    with pytest.raises(CannotTrace, match="only a probe shows it"):
        trace(request(MODELS["llama"], tmp_path, compile="regional"))
    with (
        pytest.raises(CannotRun, match="chooses among operators"),
        closing(assemble(request(MODELS["llama"], tmp_path, compile="regional", checkpointing="selective"))),
    ):
        pass
