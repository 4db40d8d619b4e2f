"""Precision and attention: what changes arithmetic stays within the rounding that its definition gives."""

import math
from contextlib import closing

import pytest
import torch

from autotune.worker.build.assembly import assemble
from autotune.worker.measuring.steps import gradient_norm
from autotune.worker.techniques.loss_scaling import INITIAL
from tests.data.requests import OWN, request
from tests.numerics.runs import COPIED, MAPPED, MODELS, norm, plain, train
from tests.reasons import refused

ROUNDING = 2**-8
"""bf16 has 8 significant bits: a number is off by at most half of this."""


def one_step(model, folder, weights=None, **candidate):
    """Return weights, loss, gradients and the training after one backward pass, from given weights."""
    training = assemble(request(MODELS[model], folder, **candidate))
    training.model.eval()  # dropout draws other masks for other types
    parameters = list(training.model.parameters())
    start = [parameter.detach().float().clone() for parameter in parameters]
    if weights is not None:
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.data.copy_(weight)
    loss = training.loss(training.batch(0, 4))
    loss.backward()
    return start, loss.item(), [p.grad.float() for p in parameters if p.grad is not None], training


@pytest.mark.parametrize("model", MODELS)
def test_pure_bf16_keeps_everything_in_two_bytes_and_agrees_to_its_rounding(model, tmp_path):
    weights, loss, gradients, plainly = one_step(model, tmp_path, precision="fp32")
    with closing(plainly):
        pass
    _, lower, ours, training = one_step(model, tmp_path, weights, precision="bf16-pure")
    assert lower == pytest.approx(loss, rel=4 * ROUNDING)
    error = torch.stack([(a - b).norm() for a, b in zip(ours, gradients, strict=True)]).norm()
    # Each of some ten roundings on a path adds one part in 2^9, and small models have few terms to average them.
    assert 0 < error / torch.stack([b.norm() for b in gradients]).norm() < 16 * ROUNDING
    training.optimizer.step()
    held = [*training.model.parameters(), *training.optimizer.state_tensors()]
    held += [parameter.grad for parameter in training.model.parameters() if parameter.grad is not None]
    assert {tensor.dtype for tensor in held if tensor.dim() > 0} == {torch.bfloat16}


@pytest.mark.parametrize(
    "fields",
    [
        {"checkpointing": "full"},
        {"checkpointing": "selective"},
        {"activation_offload": True},
        {"offload": "optimizer"},
        {"offload": "full"},
        {"optimizer_in_backward": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("files", [MAPPED, COPIED])
def test_what_moves_memory_changes_no_bit_of_pure_bf16(fields, files):
    run, reference = (train("gpt2", files=files, precision="bf16-pure", **more) for more in (fields, {}))
    assert run.losses == reference.losses
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(run.weights, reference.weights, strict=True))


HALF = 2**-11
"""fp16 has 11 significant bits."""


@pytest.mark.parametrize("model", MODELS)
def test_fp16_agrees_to_its_rounding_and_scales_gradients_alone(model, tmp_path):
    weights, loss, gradients, plainly = one_step(model, tmp_path, precision="fp32")
    plainly.close()
    _, lower, _, training = one_step(model, tmp_path, weights, precision="fp16")
    assert lower == pytest.approx(loss, rel=4 * HALF)
    own = [parameter for parameter in training.model.parameters() if parameter.grad is not None]
    scale = INITIAL
    while not norm([parameter.grad for parameter in own]).isfinite():  # 2^16 is too much at first: as ever
        training.optimizer.step()
        training.optimizer.zero_grad()
        training.loss(training.batch(0, 4)).backward()
        scale /= 2
    assert training.scaling.skipped == math.log2(INITIAL / scale) < 8
    scaled = float(norm([parameter.grad for parameter in own]))
    assert gradient_norm(training) * scale == pytest.approx(scaled, rel=1e-6)
    # As above: some ten roundings on a path.
    error = norm([parameter.grad - b for parameter, b in zip(own, gradients, strict=True)])
    assert 0 < error / norm(gradients) < 16 * HALF


def test_fp16_overflows_are_left_out_counted_and_bring_the_scale_down(tmp_path):
    with closing(assemble(request(MODELS["llama"], tmp_path, precision="fp16", optimizer="sgd"))) as training:
        weights = [parameter.detach().clone() for parameter in training.model.parameters()]
        for step, times in enumerate((float("inf"), 1.0)):
            (training.loss(training.batch(step, 2)) * times).backward()
            gradient_norm(training)
            training.optimizer.step()
            training.optimizer.zero_grad()
            same = [torch.equal(a, b) for a, b in zip(training.model.parameters(), weights, strict=True)]
            assert all(same) == (step == 0)
        assert training.scaling.skipped == 1
        assert not training.scaling.collapsed
        training.loss(training.batch(2, 2)).backward()
        scaled = norm([p.grad for p in training.model.parameters()]).clone()
        assert scaled / gradient_norm(training) == INITIAL / 2


@pytest.mark.parametrize(
    "fields", [{"checkpointing": "full"}, {"activation_offload": True}, {"offload": "optimizer"}], ids=str
)
@pytest.mark.parametrize("files", [MAPPED, COPIED])
def test_what_moves_memory_changes_no_bit_of_fp16(fields, files):
    run, reference = (train("gpt2", files=files, precision="fp16", **more) for more in (fields, {}))
    assert run == reference
    assert reference.losses[-1] < reference.losses[0]


@pytest.mark.parametrize("optimizer", ["adamw-8bit", "adafactor", "momentum", "sgd"])
def test_every_optimizer_takes_bf16_parameters(optimizer):
    losses = train("gpt2", precision="bf16-pure", optimizer=optimizer).losses
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("model", ["gpt2", "llama", "mixtral", "bert", "vit"])
def test_eager_attention_is_the_same_attention(model, tmp_path):
    # The softmax is summed in another order: fp32 rounds at 2^-24 = 6e-8.
    weights, loss, gradients, training = one_step(model, tmp_path, precision="fp32")
    assert training.attention == "sdpa"
    _, eager, ours, other = one_step(model, tmp_path, weights, precision="fp32", attention="eager")
    assert other.attention == "eager"
    assert eager == pytest.approx(loss, rel=1e-6)
    error = torch.stack([(a - b).norm() for a, b in zip(ours, gradients, strict=True)]).norm()
    assert error < 1e-5 * torch.stack([b.norm() for b in gradients]).norm()


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_checkpointing_changes_no_bit_of_eager_attention(checkpointing):
    run, reference = (
        train("llama", attention="eager", precision="fp32", checkpointing=how)
        for how in (checkpointing, "none")
    )
    assert run == reference
    assert reference != plain("llama", "fp32")


def test_an_attention_that_is_not_there_is_refused_by_name(tmp_path):
    for attention in ("flash_attention_2", "flex_attention"):
        with refused("attention", "device"):
            assemble(request(MODELS["gpt2"], tmp_path, attention=attention))
    with refused("attention", "context"):
        assemble(request(OWN, tmp_path, attention="eager"))
