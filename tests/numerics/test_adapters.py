"""LoRA trains what it says and leaves the rest, and goes with what moves memory without changing a bit."""

import sys
from contextlib import closing

import pytest
import torch

from autotune.memory.closed_form import lora_parameters
from autotune.worker.build.assembly import assemble
from autotune.worker.techniques import activation_offload
from autotune.worker.techniques.four_bit import BLOCK, FourBitLinear
from autotune.worker.techniques.mapped_files import is_mapped
from tests.data.requests import family, request
from tests.numerics.runs import COPIED, MAPPED, plain, train
from tests.reasons import refused


@pytest.fixture
def all_sizes(monkeypatch):
    """Let the tiny models' activations count as large."""
    monkeypatch.setattr(activation_offload, "SMALL", 1 << 10)


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


def test_adapters_without_peft_are_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with refused("adapters", "package"):
        assemble(request(family("gpt2"), tmp_path, adapters="lora"))


def four_bit(training):
    return [part for part in training.model.modules() if isinstance(part, FourBitLinear)]


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_four_bit_weights_are_off_by_no_more_than_half_a_gap_of_nf4(model, tmp_path):
    with closing(assemble(request(family(model), tmp_path, adapters="lora", precision="fp32"))) as training:
        weights = dict(training.model.named_parameters())
    with closing(assemble(request(family(model), tmp_path, adapters="qlora", precision="fp32"))) as training:
        for name, part in training.model.named_modules():
            if isinstance(part, FourBitLinear):
                before = weights[f"{name}.weight"].detach()
                before = before.t() if model == "gpt2" else before  # its layers hold them the other way round
                blocks = before.reshape(-1, BLOCK)
                error = (part.whole().reshape(-1, BLOCK) - blocks).abs() / blocks.abs().amax(1, keepdim=True)
                # NF4's levels lie closest together at 0; the widest gap is from -1 to -0.6962.
                assert 0 < error.max() <= (1 - 0.6961) / 2
        assert len(four_bit(training)) == {"gpt2": 8, "llama": 14}[model]
        assert not any(is_mapped(parameter) for parameter in training.model.parameters())


def test_qlora_computes_what_lora_does_with_the_weights_it_has(tmp_path):
    with closing(
        assemble(request(family("llama"), tmp_path, adapters="qlora", precision="fp32"))
    ) as quantized:
        whole = {
            name: part.whole()
            for name, part in quantized.model.named_modules()
            if isinstance(part, FourBitLinear)
        }
        before = [part.weight.clone() for part in four_bit(quantized)]
        with closing(
            assemble(request(family("llama"), tmp_path, adapters="lora", precision="fp32"))
        ) as plainly:
            for name, weight in whole.items():
                plainly.model.get_submodule(name).weight.data.copy_(weight)
            for one, other in zip(quantized.model.parameters(), plainly.model.parameters(), strict=True):
                if one.requires_grad:
                    one.data.copy_(other)
            for training in (quantized, plainly):
                for step in range(3):
                    loss = training.loss(training.batch(step, 4))
                    loss.backward()
                    training.optimizer.step()
                    training.optimizer.zero_grad()
            for one, other in zip(quantized.model.parameters(), plainly.model.parameters(), strict=True):
                if one.requires_grad:
                    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
        assert all(
            torch.equal(part.weight, held) for part, held in zip(four_bit(quantized), before, strict=True)
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"checkpointing": "full"},
        {"checkpointing": "selective"},
        {"activation_offload": True},
        {"offload": "gradients"},
        {"optimizer_in_backward": True},
    ],
    ids=str,
)
def test_what_moves_memory_changes_no_bit_beside_four_bit_weights(fields, all_sizes):
    run, reference = (train("gpt2", adapters="qlora", precision="bf16-pure", **more) for more in (fields, {}))
    assert run.losses == reference.losses
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(run.weights, reference.weights, strict=True))
    assert run.losses[-1] < run.losses[0]
