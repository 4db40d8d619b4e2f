"""LoRA trains what it says and leaves the rest, and goes with what moves memory without changing a bit."""

import sys
from contextlib import closing

import pytest
import torch

from autotune.memory.formula import lora_parameters
from autotune.train.build import assemble
from autotune.train.refusal import CannotRun
from tests.data.requests import family, request
from tests.numerics.runs import COPIED, MAPPED, plain, train


@pytest.mark.parametrize("model", ["gpt2", "llama", "bert", "own"])
def test_the_model_starts_as_it_was_and_learns(model):
    run = train(model, adapters="lora", precision="fp32")
    # Frozen dropout draws other masks: none where the model has no dropout.
    if model in {"llama", "own"}:
        assert run.losses[0] == plain(model, "fp32").losses[0]
    assert run.losses[-1] < run.losses[0]


def test_only_adapters_train_as_many_as_the_formula_says(tmp_path):
    with closing(assemble(request(family("llama"), tmp_path, adapters="lora"))) as training:
        before = {name: p.detach().clone() for name, p in training.model.named_parameters()}
        for step in range(2):
            training.loss(training.batch(step, 2)).backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
        changed = {name for name, p in training.model.named_parameters() if not torch.equal(p, before[name])}
    trained = {name for name, p in training.model.named_parameters() if p.requires_grad}
    assert changed == trained
    assert all("lora_" in name for name in trained)
    matrices = ((64, 64), (64, 32), (64, 32), (64, 64), (64, 128), (64, 128), (128, 64))
    count = sum(p.numel() for p in training.model.parameters() if p.requires_grad)
    assert count == lora_parameters(16, matrices, copies=2)


@pytest.mark.parametrize("files", [MAPPED, COPIED])
@pytest.mark.parametrize(
    "fields",
    [
        {"checkpointing": "full"},
        {"checkpointing": "selective"},
        {"activation_offload": True},
        {"offload": "optimizer"},
        {"optimizer_in_backward": True},
    ],
    ids=str,
)
def test_what_moves_memory_changes_no_bit(fields, files):
    run, reference = (
        train("gpt2", files=files, adapters="lora", precision="fp32", **more) for more in (fields, {})
    )
    assert run.losses == reference.losses
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(run.weights, reference.weights, strict=True))


def test_chunked_loss_makes_no_gradient_for_a_frozen_head():
    chunked, reference = (
        train("llama", adapters="lora", loss=loss, precision="fp32") for loss in ("chunked", "full")
    )
    assert chunked.losses == pytest.approx(reference.losses, rel=1e-6)


def test_without_peft_the_refusal_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(CannotRun, match=r"pip install 'autotune\[peft\]'"):
        assemble(request(family("gpt2"), tmp_path, adapters="lora"))
