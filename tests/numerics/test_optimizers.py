"""The optimizers: state elsewhere changes no bit, nor does the step inside backward; 8 bits round as they say."""

import sys

import pytest
import torch

from autotune.candidate import Candidate, choices
from autotune.techniques.check import refusal
from autotune.worker.build.assembly import assemble
from autotune.worker.errors import CannotRun
from autotune.worker.techniques.mapped_files import is_mapped
from tests.data.requests import family, request
from tests.numerics.runs import COPIED, MODELS, STEPS, plain, train
from tests.reasons import reasons, refused

OPTIMIZERS = choices("optimizer")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_learns(optimizer):
    losses = plain("gpt2", "fp32", optimizer).losses
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("files", [None, COPIED])
@pytest.mark.parametrize("offload", ["optimizer", "full"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_offload_changes_no_bit_of_any_optimizer(optimizer, offload, files):
    assert train("gpt2", files=files, offload=offload, optimizer=optimizer, precision="fp32") == plain(
        "gpt2", "fp32", optimizer
    )


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "sgd"])
def test_offloaded_state_lives_in_files_however_it_was_made(optimizer, tmp_path):
    training = assemble(request(family("gpt2"), tmp_path, offload="optimizer", optimizer=optimizer))
    for step in range(2):
        training.loss(training.batch(step, 2)).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        state = [tensor for tensor in training.optimizer.state_tensors() if tensor.dim() > 0]
        assert state
        assert all(is_mapped(tensor) for tensor in state)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["gpt2", "t5", "own"])
def test_a_step_inside_backward_gives_the_same_weights_and_leaves_no_gradient(model, optimizer):
    run = train(model, optimizer=optimizer, optimizer_in_backward=True, precision="fp32")
    reference = plain(model, "fp32", optimizer)
    assert run.losses == reference.losses
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(run.weights, reference.weights, strict=True))
    assert run.gradients == [[]] * STEPS


def test_a_step_inside_backward_goes_with_neither_accumulation_nor_offload(tmp_path):
    whole = request(MODELS["gpt2"], tmp_path, optimizer_in_backward=True)
    with refused("optimizer_in_backward", "context"):
        assemble(whole.model_copy(update={"accumulation_steps": 2}))
    offloaded = whole.candidate.model_copy(update={"offload": "optimizer"})
    assert reasons(offloaded) == [("optimizer_in_backward", "axes", "offload")]
    with pytest.raises(CannotRun) as caught:
        assemble(whole.model_copy(update={"candidate": offloaded}))
    assert caught.value.reason == refusal(offloaded)
    assert reasons(whole.candidate) == []


@pytest.mark.parametrize("moving", [{}, {"offload": "optimizer"}, {"optimizer_in_backward": True}], ids=str)
@pytest.mark.parametrize("optimizer", ["adamw", "momentum", "sgd"])
def test_foreach_is_the_same_update_to_rounding(optimizer, moving):
    # Fused and foreach divide and multiply in another order: a few roundings of fp32 (2^-24) a step.
    run = train("gpt2", optimizer=optimizer, optimizer_kernel="foreach", precision="fp32", **moving)
    reference = plain("gpt2", "fp32", optimizer)
    assert run.losses == pytest.approx(reference.losses, rel=1e-6)
    # AdamW's step has the size of the rate whatever the gradient, so one of rounding's size may point elsewhere.
    ours, theirs = (torch.cat([weight.flatten() for weight in one.weights]) for one in (run, reference))
    assert (ours - theirs).norm() < 1e-5 * theirs.norm()


def test_foreach_is_refused_where_an_optimizer_has_one_implementation():
    refused = reasons(Candidate(optimizer="adafactor", optimizer_kernel="foreach"))
    assert refused == [("optimizer_kernel", "axes", "optimizer")]
    assert reasons(Candidate(optimizer="momentum", optimizer_kernel="foreach")) == []


def test_eight_bit_moments_are_those_of_adamw_to_half_a_step_of_their_code(tmp_path):
    """After one step from equal gradients; a block of 256 values is scaled by its largest (Dettmers et al. 2022)."""
    import bitsandbytes.functional as bnb

    moments = {}
    for optimizer in ("adamw", "adamw-8bit"):
        training = assemble(request(MODELS["gpt2"], tmp_path, optimizer=optimizer, precision="fp32"))
        training.loss(training.batch(0, 4)).backward()
        training.optimizer.step()
        moments[optimizer] = list(training.optimizer._optimizer.state.values())
    checked = 0
    for exact, coded in zip(moments["adamw"], moments["adamw-8bit"], strict=True):
        if coded["state1"].dtype != torch.uint8:
            assert torch.allclose(exact["exp_avg"], coded["state1"], rtol=1e-5, atol=0)
            continue
        for name, number in (("exp_avg", "1"), ("exp_avg_sq", "2")):
            code, scales = coded[f"qmap{number}"], coded[f"absmax{number}"]
            value = bnb.dequantize_blockwise(
                coded[f"state{number}"], absmax=scales, code=code, blocksize=256
            ).flatten()
            bound = scales.repeat_interleave(256)[: value.numel()] * code.diff().max() / 2
            assert ((value - exact[name].flatten()).abs() <= 1.01 * bound + 1e-12).all()
            checked += value.numel()
    assert checked


def test_8_bit_states_without_bitsandbytes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with refused("optimizer", "package"):
        assemble(request(MODELS["gpt2"], tmp_path, optimizer="adamw-8bit"))
