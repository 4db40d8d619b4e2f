"""A part of a model that trains: what is frozen stays, and memory moves as ever."""

from contextlib import closing

import pytest
import torch

from autotune.errors import InputError
from autotune.memory.closed_form import states
from autotune.worker.build.assembly import assemble
from autotune.worker.build.inspect import inspect_model
from autotune.worker.measuring.phases import Phases
from autotune.worker.techniques import activation_offload
from autotune.worker.tracing.trace import trace
from tests.data.requests import family, request
from tests.numerics import runs
from tests.numerics.runs import COPIED, MAPPED, train
from tests.reasons import refused

ROUTER = ("*.mlp.gate",)
TENSORS = ("gate_up_proj", "down_proj")
EXPERTS = (*ROUTER, "model.layers.1.mlp.experts[0,2-3]")


@pytest.fixture(autouse=True)
def routers(monkeypatch):
    """Offer a mixture of experts of which the routers alone train."""
    model = family("mixtral").model_copy(update={"train": ROUTER})
    monkeypatch.setitem(runs.MODELS, "routers", model)
    some = model.model_copy(update={"train": EXPERTS})
    monkeypatch.setitem(runs.MODELS, "experts", some)
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


@pytest.mark.parametrize(
    ("files", "fields"),
    [(None, {"checkpointing": "full"}), (MAPPED, {"activation_offload": True}), (COPIED, {"offload": "gradients"}),
     (None, {"optimizer_in_backward": True}), (MAPPED, {"offload": "full"})],
    ids=str,
)  # fmt: skip
def test_what_moves_memory_changes_no_bit_of_chosen_experts(fields, files, monkeypatch):
    monkeypatch.setattr(activation_offload, "SMALL", 1 << 8)
    run, reference = (train("experts", files=files, precision="fp32", **more) for more in (fields, {}))
    assert run.losses == reference.losses
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(run.weights, reference.weights, strict=True))


@pytest.mark.parametrize("implementation", ["grouped_mm", "eager"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-pure"])
def test_gradients_of_chosen_experts_are_those_rows_of_the_whole_gradient(
    precision, implementation, tmp_path
):
    whole, chosen = {}, {}
    for patterns, found in (((), whole), (EXPERTS, chosen)):
        model = family("mixtral").model_copy(update={"train": patterns})
        with closing(assemble(request(model, tmp_path, precision=precision))) as training:
            training.model.config._experts_implementation = implementation
            training.loss(training.batch(0, 2)).backward()
            found.update(
                (name, p.grad) for name, p in training.model.named_parameters() if p.grad is not None
            )
            tensors = {name: getattr(training.model.model.layers[1].mlp.experts, name) for name in TENSORS}
            before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            training.optimizer.step()
    assert len(chosen) == 2 + 2 * 3, "two routers, and two matrices of each of three experts"
    for name in TENSORS:
        for expert in (0, 2, 3):
            row = chosen[f"model.layers.1.mlp.experts.parametrizations.{name}.0.rows.{expert}"]
            assert row.any()
            assert torch.equal(row, whole[f"model.layers.1.mlp.experts.{name}"][expert])
            assert row.untyped_storage().nbytes() == row.numel() * row.element_size(), "and keeps no more"
        # What the forward pass computes with has followed the update, in the chosen rows alone.
        moved = [not torch.equal(*rows) for rows in zip(tensors[name], before[name], strict=True)]
        assert moved == [True, False, True, True]


def test_a_trace_counts_chosen_experts_as_the_formula_does(routers, tmp_path):
    spec = routers.model_copy(update={"train": EXPERTS})
    timeline = trace(request(spec, tmp_path, precision="fp32"))
    hidden, width, experts = 64, 128, 4
    trained = 2 * experts * hidden + 3 * 3 * hidden * width
    peak = timeline.peak(2)
    # Beside the moments a step counter for each parameter.
    assert peak.breakdown["optimizer_state"] == states(trained, "fp32").optimizer_state + 8 * 4
    assert peak.breakdown["parameter"] == 4 * timeline.facts["parameters"]
    facts = inspect_model(request(spec, tmp_path), Phases(lambda *_: None))
    assert facts.trainable_parameters == trained
    assert facts.parameters == timeline.facts["parameters"]
    assert facts.active_parameters < facts.parameters


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("*.layers.0.mlp.experts[1,4]", r"experts has members 0 to 3, and no 4"),
     ("model.layers.0.mlp.expert[1]", r"experts, or of a list of modules.*did you mean model.layers.0.mlp.experts"),
     ("*.mlp.experts[1-]", r"written as 0,5 or 0-3")],
)  # fmt: skip
def test_numbers_that_choose_nothing_are_refused(pattern, message, routers, tmp_path):
    with pytest.raises(InputError, match=message):
        assemble(request(routers.model_copy(update={"train": (pattern,)}), tmp_path))


def test_numbers_choose_of_a_list_of_modules_too_and_sets_of_characters_stay(routers, tmp_path):
    for pattern in ("model.layers[1]", "model.layer[s].1", "model.layers.[1]"):
        model = routers.model_copy(update={"train": (pattern,)})
        with closing(assemble(request(model, tmp_path))) as training:
            trained = [name for name, p in training.model.named_parameters() if p.requires_grad]
        assert trained
        assert all(name.startswith("model.layers.1.") for name in trained)


def test_chosen_experts_are_refused_where_parameters_get_memory_of_their_own(routers, tmp_path):
    spec = routers.model_copy(update={"train": EXPERTS})
    with refused("offload", "context"):
        assemble(request(spec, tmp_path, offload="full"), files=COPIED)
    with refused("compile", "context"):
        assemble(request(spec, tmp_path, compile="regional"))


def test_a_name_that_is_none_is_refused_with_the_nearest(routers, tmp_path):
    wrong = routers.model_copy(update={"train": ("model.layer.0",)})
    with pytest.raises(InputError, match=r"--train model.layer.0: .* did you mean model.layers.0"):
        assemble(request(wrong, tmp_path))
    with refused("adapters", "context"):
        assemble(request(routers, tmp_path, adapters="lora"))


def test_tied_weights_go_by_each_of_their_names(tmp_path):
    model = family("gpt2").model_copy(update={"train": ("lm_head",)})
    with closing(assemble(request(model, tmp_path))) as training:
        assert [name for name, p in training.model.named_parameters() if p.requires_grad] == [
            "transformer.wte.weight"
        ]
