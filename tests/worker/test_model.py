"""Models are built from configurations and from a user's function, and misuse is said clearly."""

import copy
import json
import math
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.errors import InputError
from autotune.models.resolve import resolve
from autotune.specs import ModelSpec
from autotune.worker.built_model import loss_of
from autotune.worker.model import build_model
from tests.data.families import FAMILIES, POSITIONS
from tests.data.requests import OWN, family

CPU, META = torch.device("cpu"), torch.device("meta")
TASKS = {"bert": "masked-lm", "t5": "seq2seq-lm", "vit": "image-classification"}


def own(function):
    return OWN.model_copy(update={"name": f"own_model:{function}"})


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_built_as_its_configuration_says(name):
    before = copy.deepcopy(FAMILIES[name])
    built = build_model(family(name), 32, META)
    assert type(built.model).__name__ == FAMILIES[name]["architectures"][0]
    assert built.task == TASKS.get(name, "causal-lm")
    assert built.tokens_per_sample == (4 * 4 + 1 if name == "vit" else 32)
    assert {(p.device.type, p.dtype) for p in built.model.parameters()} == {("meta", torch.float32)}
    assert built.model.training
    assert not getattr(built.config, "use_cache", False)
    assert built.attention in {"sdpa", "eager"}
    assert FAMILIES[name] == before


def test_nothing_is_drawn_into_a_model_without_memory():
    class Drawn(TorchDispatchMode):
        names: ClassVar[list[str]] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names.append(function.__name__)
            return function(*args, **(kwargs or {}))

    with Drawn():
        build_model(family("gpt2"), 32, META)
    assert Drawn.names
    assert not [name for name in Drawn.names if name.startswith(("normal", "uniform", "rand"))]


@pytest.mark.parametrize(("name", "expected"), [("bert", "BertForMaskedLM"), ("llama", "LlamaForCausalLM")])
@pytest.mark.parametrize("architectures", [None, ["BertModel"], ["BertForPreTraining"]])
def test_without_a_known_architecture_the_type_decides(name, expected, architectures):
    built = build_model(family(name, architectures=architectures), 32, META)
    assert type(built.model).__name__ == expected


def test_equal_seeds_give_equal_weights_and_a_stored_half_precision_is_not_taken_over():
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(build_model(family("llama", dtype="bfloat16"), 32, CPU).model)
    same, again, other = (nn.utils.parameters_to_vector(model.parameters()) for model in models)
    assert torch.equal(same, again)
    assert not torch.equal(same, other)
    assert same.dtype == torch.float32


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "opt"])
def test_a_sequence_beyond_the_positions_is_refused(name):
    build_model(family(name), POSITIONS, META)
    with pytest.raises(InputError, match=f"{POSITIONS} positions.*--seq-len"):
        build_model(family(name), POSITIONS + 1, META)


def test_positions_behind_the_padding_index_do_not_count():
    roberta = {**FAMILIES["bert"], "model_type": "roberta", "architectures": None, "pad_token_id": 1}
    spec = ModelSpec(name="roberta", source="config", config=roberta)
    build_model(spec, POSITIONS - 2, META)
    with pytest.raises(InputError) as caught:
        build_model(spec, POSITIONS - 1, META)
    assert caught.value.about == ("seq_len",)


def test_relative_positions_have_no_limit():
    assert build_model(family("t5"), 10_000, META).tokens_per_sample == 10_000


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "no model_type"),
        ({"model_type": "lama"}, "llama"),
        ({"model_type": "gpt2", "n_layer": "two"}, "refuses its configuration"),
        ({"model_type": "gpt2", "n_head": 5, "n_embd": 64}, "refuses its configuration"),
        ({"model_type": "wav2vec2"}, "module:function"),
        (
            {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]},
            "WhisperForConditionalGeneration is no model.*WhisperForCausalLM; write a module:function",
        ),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(config, message):
    with pytest.raises(InputError, match=message):
        build_model(ModelSpec(name="mine", source="config", config=config), 32, META)


@pytest.mark.parametrize("infinity", ["Infinity", '{"__float__": "Infinity"}'], ids=["hub", "saved"])
@pytest.mark.parametrize("model_type", ["mamba2", "bamba", "falcon_h1", "granitemoehybrid", "nemotron_h"])
def test_a_number_that_is_not_finite_reaches_the_model_through_the_records_of_a_run(
    model_type, infinity, tmp_path
):
    """A run's records are JSON, which has no such numbers. All sizes are the type's own: nothing takes memory here."""
    (tmp_path / "config.json").write_text(
        f'{{"model_type": "{model_type}", "time_step_limit": [0.5, {infinity}]}}'
    )
    recorded = resolve(".", base=tmp_path).model_dump_json()
    built = build_model(ModelSpec.model_validate_json(recorded), 32, META)
    assert list(built.config.time_step_limit) == [0.5, math.inf]
    json.loads(recorded, parse_constant=pytest.fail)


def test_code_that_comes_with_a_model_runs_only_when_trusted(tmp_path):
    (tmp_path / "ran.py").write_text("")
    (tmp_path / "configuration_odd.py").write_text(
        "from transformers import PretrainedConfig\n"
        "class OddConfig(PretrainedConfig):\n"
        "    model_type = 'odd-one'\n"
        "    vocab_size = 16\n"
    )
    (tmp_path / "modeling_odd.py").write_text(
        "import torch\n"
        "from transformers import PreTrainedModel\n"
        "from .configuration_odd import OddConfig\n"
        "class OddForCausalLM(PreTrainedModel):\n"
        "    config_class = OddConfig\n"
        "    def __init__(self, config):\n"
        "        super().__init__(config)\n"
        "        self.embed = torch.nn.Embedding(16, 4)\n"
        "        self.post_init()\n"
    )
    config = {
        "model_type": "odd-one",
        "auto_map": {
            "AutoConfig": "configuration_odd.OddConfig",
            "AutoModelForCausalLM": "modeling_odd.OddForCausalLM",
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = ModelSpec(name=str(tmp_path / "config.json"), source="config", config=config)
    with pytest.raises(InputError) as caught:
        build_model(spec, 32, CPU)
    assert caught.value.about == ("trust_remote_code",)
    built = build_model(spec.model_copy(update={"trust_remote_code": True}), 32, CPU)
    assert type(built.model).__name__ == "OddForCausalLM"


def test_a_user_function_gives_model_and_batches():
    built = build_model(OWN, 12, CPU)
    assert built.task == "custom"
    assert built.tokens_per_sample == 12
    assert built.make_batch is not None
    assert built.make_batch(3, 12)["tokens"].shape == (3, 12)


def test_of_two_modules_of_one_name_the_one_in_the_specs_folder_is_taken(tmp_path):
    (tmp_path / "own_model.py").write_text("def build():\n    raise LookupError('the other one')\n")
    other = OWN.model_copy(update={"path": str(tmp_path)})
    for _ in range(2):
        assert build_model(OWN, 12, CPU).make_batch(3, 12)["tokens"].shape == (3, 12)
        with pytest.raises(LookupError):
            build_model(other, 12, CPU)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_model:built", "no function 'built'.*did you mean build"),
        ("own_model:VOCABULARY", "'VOCABULARY' of module 'own_model' is of type int and cannot be called"),
        ("own_modell:build", "no Python module 'own_modell'"),
        ("own_model:build_alone", r"must return \(nn.Module, make_batch\), .* it returned Network"),
        ("own_model:build_half", "must be torch.float32.*torch.bfloat16"),
        ("own_model:build_placed", "placed by device_map.*build it without device_map"),
        ("own_model:build_with_bad_batch", "must be a dict of tensors, it is list"),
    ],
)
def test_a_function_that_breaks_the_contract_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        build_model(OWN.model_copy(update={"name": name}), 8, CPU)


def test_an_error_of_the_users_own_code_comes_through_unchanged():
    with pytest.raises(ZeroDivisionError):
        build_model(own("build_with_bug"), 8, CPU)


def test_a_module_that_the_users_module_misses_is_the_users_own_error(tmp_path):
    (tmp_path / "needs_more.py").write_text("import a_module_that_nobody_has\n")
    spec = ModelSpec(name="needs_more:build", source="function", path=str(tmp_path))
    with pytest.raises(ModuleNotFoundError) as caught:
        build_model(spec, 8, CPU)
    assert caught.value.name == "a_module_that_nobody_has"


class Output:
    loss = torch.tensor(2.0)


@pytest.mark.parametrize(
    "output",
    [torch.tensor(2.0), torch.tensor([2.0]), {"loss": torch.tensor(2.0)}, Output(), (torch.tensor(2.0), 1)],
)
def test_a_loss_is_found_wherever_the_contract_allows_it(output):
    assert loss_of(output).item() == 2.0
    assert loss_of(output).shape == ()


@pytest.mark.parametrize("output", [torch.zeros(3), {"logits": torch.zeros(1)}, (), None, 2.0])
def test_a_forward_without_a_loss_is_refused(output):
    with pytest.raises(InputError, match=r"must return the loss as one number"):
        loss_of(output)
