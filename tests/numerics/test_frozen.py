"""A part of a model that trains: what is frozen stays, and memory moves as ever."""

from contextlib import closing

import pytest
import torch

from autotune.errors import InputError
from autotune.train.build import assemble
from autotune.train.refusal import CannotRun
from tests.data.requests import family, request
from tests.numerics import runs
from tests.numerics.runs import COPIED, MAPPED, train

ROUTER = ("*.mlp.gate",)


@pytest.fixture(autouse=True)
def routers(monkeypatch):
    """Offer a mixture of experts of which the routers alone train."""
    model = family("mixtral").model_copy(update={"train": ROUTER})
    monkeypatch.setitem(runs.MODELS, "routers", model)
    return model


def test_only_what_is_named_changes_and_has_state(routers, tmp_path):
    with closing(assemble(request(routers, tmp_path))) as training:
        before = {name: p.detach().clone() for name, p in training.model.named_parameters()}
        training.loss(training.batch(0, 2)).backward()
        assert {name for name, p in training.model.named_parameters() if p.grad is not None} == {
            f"model.layers.{layer}.mlp.gate.weight" for layer in (0, 1)
        }
        training.optimizer.step()
        assert sum(value.dim() > 0 for value in training.optimizer.state_tensors()) == 4
        changed = {name for name, p in training.model.named_parameters() if not torch.equal(p, before[name])}
        assert changed == {"model.layers.0.mlp.gate.weight", "model.layers.1.mlp.gate.weight"}


@pytest.mark.parametrize("files", [MAPPED, COPIED])
@pytest.mark.parametrize(
    "fields",
    [{"checkpointing": "full"}, {"activation_offload": True}, {"offload": "gradients"}, {"optimizer_in_backward": True},
     {"offload": "full"}],
    ids=str,
)  # fmt: skip
def test_what_moves_memory_changes_no_bit_of_what_trains(fields, files):
    run, reference = (train("routers", files=files, precision="fp32", **more) for more in (fields, {}))
    assert run.losses == reference.losses
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(run.weights, reference.weights, strict=True))


def test_a_name_that_is_none_is_refused_with_the_nearest(routers, tmp_path):
    wrong = routers.model_copy(update={"train": ("model.layer.0",)})
    with pytest.raises(InputError, match=r"--train model.layer.0: .* did you mean model.layers.0"):
        assemble(request(wrong, tmp_path))
    with pytest.raises(CannotRun, match="leave out --train"):
        assemble(request(routers, tmp_path, adapters="lora"))


def test_tied_weights_go_by_each_of_their_names(tmp_path):
    model = family("gpt2").model_copy(update={"train": ("lm_head",)})
    with closing(assemble(request(model, tmp_path))) as training:
        assert [name for name, p in training.model.named_parameters() if p.requires_grad] == [
            "transformer.wte.weight"
        ]
