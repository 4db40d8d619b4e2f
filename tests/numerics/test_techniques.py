"""Techniques that save memory do not change what is computed.

Every run starts from the same seed and is compared with the plain one over three optimizer steps, dropout
included (GPT-2, BERT and T5 have 0.1). Losses and gradients are equal bit for bit: the same kernels meet the same
numbers in the same order. The exceptions are named where they stand.
"""

import pytest
import torch

from autotune.worker.build.assembly import assemble
from autotune.worker.measuring.steps import gradient_norm
from autotune.worker.techniques import gradient_offload
from autotune.worker.techniques.mapped_files import is_mapped
from tests.data.requests import OWN, family, request
from tests.numerics.runs import CHECKPOINTED, COPIED, MAPPED, MODELS, accumulated, plain, train
from tests.reasons import refused


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", MODELS)
def test_the_plain_run_repeats_itself_and_learns(model, precision):
    reference = plain(model, precision)
    assert train(model, precision=precision) == reference
    assert reference.losses[-1] < reference.losses[0]
    assert reference.gradients[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("offload", ["none", "optimizer", "full"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "one-selective", "one-full", "full"])
@pytest.mark.parametrize("model", MODELS)
def test_checkpointing_and_offload_to_files_change_no_bit(model, checkpointing, offload, precision):
    run = train(model, **CHECKPOINTED[checkpointing], offload=offload, precision=precision)
    assert run == plain(model, precision)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("files", [MAPPED, COPIED])
def test_gradients_that_rest_elsewhere_change_no_bit(files, precision):
    model = "t5"  # whose shared weights get several gradients in a pass
    run = train(model, files=files, checkpointing="full", offload="gradients", precision=precision)
    reference = plain(model, precision)
    assert run.losses == reference.losses
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(run.weights, reference.weights, strict=True))


def test_gradients_on_the_host_add_up_to_the_same_and_have_the_same_norm(tmp_path, monkeypatch):
    monkeypatch.setattr(gradient_offload, "SLICE", 1 << 10)  # so that gradients are added in several parts
    norms = {}
    for offload in ("none", "gradients"):
        training = assemble(
            request(family("gpt2"), tmp_path, offload=offload, precision="fp32"), files=COPIED
        )
        for step in range(3):
            training.loss(training.batch(step, 2)).backward()
        assert all(p.grad is None for p in training.model.parameters()) == (offload == "gradients")
        norms[offload] = gradient_norm(training)
        training.optimizer.step()
        training.optimizer.zero_grad()
        assert all(p.grad is None for p in training.model.parameters())
        assert training.gradients is None or not list(training.gradients())
        training.close()
    assert norms["gradients"] == norms["none"]


@pytest.mark.parametrize("offload", ["optimizer", "full"])
def test_stateless_sgd_offloads_too(offload):
    assert train("gpt2", offload=offload, optimizer="sgd", precision="fp32") == plain("gpt2", "fp32", "sgd")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("model", ["gpt2", "mixtral", "own"])
def test_optimizer_state_that_is_copied_to_the_device_and_back_changes_no_bit(
    model, checkpointing, precision
):
    run = train(model, files=COPIED, checkpointing=checkpointing, offload="optimizer", precision=precision)
    assert run == plain(model, precision)


@pytest.mark.parametrize("checkpointing", ["none", "selective", "one-full", "full"])
@pytest.mark.parametrize("model", ["gpt2", "llama", "mixtral", "own"])
def test_sharded_offload_changes_no_bit_in_fp32(model, checkpointing):
    run = train(model, files=COPIED, **CHECKPOINTED[checkpointing], offload="full", precision="fp32")
    assert run == plain(model, "fp32")


def test_sharded_offload_adds_the_gradients_of_shared_weights_in_another_order():
    # T5's position bias is used by every block, so its gradient is a sum whose order the sharding changes.
    run = train("t5", files=COPIED, offload="full", precision="fp32")
    assert run.losses == pytest.approx(plain("t5", "fp32").losses, rel=1e-6)
    assert run.gradient_error(plain("t5", "fp32")) < 1e-5


@pytest.mark.parametrize("model", ["gpt2", "llama", "mixtral", "t5", "own"])
def test_sharded_offload_in_bf16_agrees_to_its_rounding(model):
    # Sharding casts what enters a block to bf16 (8 significant bits, 2^-8 = 0.4%), where autocast may keep fp32.
    run = train(model, files=COPIED, checkpointing="full", offload="full", precision="bf16")
    assert run.losses == pytest.approx(plain(model, "bf16").losses, rel=2**-8)
    assert 0 < run.gradient_error(plain(model, "bf16")) < 0.05


def test_sharded_offload_accumulates_on_the_host():
    one, two = (accumulated("gpt2", 4, 2, offload=offload, files=COPIED) for offload in ("none", "full"))
    assert one == two


@pytest.mark.parametrize(
    ("checkpointing", "offload"), [("none", "none"), ("full", "none"), ("none", "full"), ("full", "full")]
)
@pytest.mark.parametrize("model", ["gpt2", "llama", "mixtral", "bert", "t5", "vit"])
def test_accumulated_gradients_equal_those_of_the_big_batch(model, checkpointing, offload):
    # Not bit for bit: the sum over samples is taken in another order, and fp32 rounds at each (2^-24 = 6e-8).
    whole = accumulated(model, 1, 8)
    parts = accumulated(model, 4, 2, checkpointing=checkpointing, offload=offload)
    assert parts.losses == pytest.approx(whole.losses, rel=1e-6)
    assert parts.gradient_error(whole) < 1e-5


def test_a_model_without_blocks_cannot_be_checkpointed_nor_sharded(tmp_path):
    (tmp_path / "flat_model.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Flat(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x).square().mean()\n"
        "def build():\n"
        "    return Flat(4, 4), lambda micro_batch, seq_len: {'x': torch.randn(micro_batch, 4)}\n"
    )
    model = OWN.model_copy(update={"name": "flat_model:build", "path": str(tmp_path)})
    with refused("checkpointing", "context", match=r"no repeated transformer block.*--block-class"):
        assemble(request(model, tmp_path, checkpointing="full"))
    with refused("sharding", "context"):
        assemble(request(model, tmp_path, offload="full"), files=COPIED)
    assemble(request(model, tmp_path, offload="full")).close()


@pytest.mark.parametrize(
    ("offload", "gradients_too", "parameters_too"),
    [("none", False, False), ("optimizer", False, False), ("gradients", True, False), ("full", True, True)],
)
def test_what_offload_moves_lives_in_files_and_the_rest_does_not(
    offload, gradients_too, parameters_too, tmp_path
):
    training = assemble(request(family("gpt2"), tmp_path, offload=offload))
    assert not list(tmp_path.iterdir())  # the files are unlinked: nothing is left however the process ends
    for step in range(2):
        training.loss(training.batch(step, 2)).backward()
        parameters = list(training.model.parameters())
        assert {is_mapped(parameter) for parameter in parameters} == {parameters_too}
        assert {is_mapped(parameter.grad) for parameter in parameters} == {gradients_too}
        training.optimizer.step()
        training.optimizer.zero_grad()
        state = [tensor for tensor in training.optimizer.state_tensors() if tensor.dim() > 0]
        assert len(state) == 2 * len(parameters)
        assert {is_mapped(tensor) for tensor in state} == {offload != "none"}
    assert not list(tmp_path.iterdir())
