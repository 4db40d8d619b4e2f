"""Chunked linear cross-entropy against torch's own, and in models.

Not bit for bit: the products are cut, so sums are taken in another order. fp32 rounds at 2^-24 = 6e-8, bf16 at 2^-9 =
2e-3, and the gradient of the weight is a sum over all tokens.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy

from autotune.worker.build.assembly import assemble
from autotune.worker.techniques.chunked_loss import linear_cross_entropy
from tests.data.requests import OWN, family, request
from tests.numerics.runs import COPIED, accumulated, plain, train
from tests.reasons import refused


def both(targets, dtype=torch.float64, bias=True, frozen=False, chunks=5, scale=0.5):
    """Return loss and gradients, by torch on all logits and in chunks."""
    torch.manual_seed(0)
    batch, positions = targets.shape
    tensors = [torch.randn(batch, positions, 8, dtype=dtype), torch.randn(11, 8, dtype=dtype)]
    tensors += [torch.randn(11, dtype=dtype)] if bias else []
    results = []
    for chunked in (False, True):
        inputs = [t.clone().requires_grad_(not (frozen and n == 1)) for n, t in enumerate(tensors)]
        hidden, weight, *rest = inputs
        if chunked:
            loss = linear_cross_entropy(hidden, weight, rest[0] if rest else None, targets, chunks)
        else:
            logits = torch.nn.functional.linear(hidden, weight, rest[0] if rest else None)
            loss = cross_entropy(logits.flatten(0, 1).double(), targets.flatten())
        (loss * scale).backward()
        results.append([loss.detach(), *(tensor.grad for tensor in inputs)])
    return results


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunks", [1, 5, 7, 100])
def test_loss_and_gradients_are_those_of_all_logits_at_once(chunks, bias, frozen):
    targets = torch.randint(11, (3, 14))
    targets[0, :5] = -100  # ignored in part of a chunk,
    targets[1] = -100  # in a whole sample,
    targets[:, 9:11] = -100  # and at whole positions
    theirs, ours = both(targets, bias=bias, frozen=frozen, chunks=chunks)
    assert ours[0] == pytest.approx(theirs[0].item(), rel=1e-6)  # summed in float32
    for one, other in zip(ours[1:], theirs[1:], strict=True):
        assert (one is None) == (other is None) == (frozen and one is None)
        if one is not None:
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)
    assert ours[1][1].abs().max() == 0


def test_no_target_at_all_gives_nan_as_torch_does():
    theirs, ours = both(torch.full((2, 4), -100))
    assert theirs[0].isnan()
    assert ours[0].isnan()


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("model", ["gpt2", "llama", "mixtral"])
def test_models_train_alike_in_fp32(model, checkpointing):
    run = train(model, loss="chunked", checkpointing=checkpointing, precision="fp32")
    assert run.losses == pytest.approx(plain(model, "fp32").losses, rel=1e-6)
    # From the second step on AdamW divides by the root of tiny moments, which enlarges a difference of rounding.
    assert 0 < run.gradient_error(plain(model, "fp32")) < 1e-3


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_models_train_alike_in_bf16(model):
    run = train(model, loss="chunked", precision="bf16")
    assert run.losses == pytest.approx(plain(model, "bf16").losses, rel=2e-3)
    assert run.gradient_error(plain(model, "bf16")) < 0.05


@pytest.mark.parametrize(
    "other",
    [{"offload": "optimizer"}, {"offload": "full"}, {"activation_offload": True}, {"optimizer_in_backward": True}],
)  # fmt: skip
def test_chunked_loss_goes_with_the_rest(other):
    assert (
        train("gpt2", loss="chunked", precision="fp32", **other).losses
        == train("gpt2", loss="chunked", precision="fp32").losses
    )


def test_chunked_loss_goes_with_sharded_offload():
    run = train("gpt2", files=COPIED, loss="chunked", offload="full", precision="fp32")
    assert run == train("gpt2", loss="chunked", precision="fp32")


def test_accumulated_gradients_equal_those_of_the_big_batch():
    whole, parts = (accumulated("gpt2", *split, loss="chunked") for split in ((1, 8), (4, 2)))
    assert parts.losses == pytest.approx(whole.losses, rel=1e-6)
    assert parts.gradient_error(whole) < 1e-5


@pytest.mark.parametrize("model", [family("bert"), family("t5"), family("vit"), OWN])
def test_models_without_causal_logits_are_refused_when_built(model, tmp_path):
    with refused("loss", "context"):
        assemble(request(model, tmp_path, loss="chunked"))


def test_a_model_that_caps_its_logits_is_refused_and_not_trained_without_the_cap(tmp_path):
    training = assemble(request(family("gemma2"), tmp_path, loss="chunked"))
    with refused("loss", "context"):
        training.loss(training.batch(0, 2))
