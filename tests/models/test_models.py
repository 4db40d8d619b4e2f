import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.models.catalog import FOLDER, find, list_presets
from autotune.models.resolve import resolve
from autotune.special_floats import tagged, untagged

DATA = Path(__file__).parents[1] / "data"
TINY = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 256}


def run(*arguments):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def base(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "mine.py").write_text("from torch import nn\ndef build(): ...\nWIDTH = 3\n")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "model.py").write_text("raise RuntimeError('imported')\ndef make(): ...\n")
    return tmp_path


def refused(name, base, **options):
    with pytest.raises(InputError) as error:
        resolve(name, base=base, **options)
    return str(error.value)


# Presets


@pytest.fixture(scope="module")
def built():
    return run(str(DATA / "count_presets.py"))


@pytest.mark.parametrize("preset", list_presets(), ids=lambda preset: preset.name)
def test_a_preset_is_the_published_model(preset, built):
    assert built[preset.name]["parameters"] == preset.parameters
    assert built[preset.name]["class"] == preset.config["architectures"][0]
    assert built[preset.name]["tokens"] == preset.longest


@pytest.mark.parametrize("preset", list_presets(), ids=lambda preset: preset.name)
def test_transformers_checkpoints_the_very_blocks_that_are_measured(preset, built):
    """The exports rely on it: their scripts use transformers' own checkpointing."""
    assert built[preset.name]["marked"]
    assert built[preset.name]["blocks"] == built[preset.name]["all"] > 1


def test_the_presets_that_are_promised_are_there():
    promised = {
        "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b", "mistral-7b",
        "mixtral-8x7b", "qwen2.5-7b", "qwen3-8b", "gemma-2-2b", "pythia-1b", "opt-1.3b", "bert-base", "vit-base",
        "t5-base", "tiny-gpt2",
    }  # fmt: skip
    assert promised <= {preset.name for preset in list_presets()}


def test_every_file_is_a_preset_and_no_name_means_two():
    spellings = [name.lower() for preset in list_presets() for name in preset.names()]
    assert len(spellings) == len(set(spellings))
    assert len(list(FOLDER.iterdir())) == len(list_presets())


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("gpt2", "gpt2"),
        ("GPT2-XL", "gpt2-xl"),
        (" gpt2 ", "gpt2"),
        ("openai-community/gpt2", "gpt2"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("mistralai/mistral-7b-v0.1", "mistral-7b"),
        ("google/gemma-2-2b", "gemma-2-2b"),
        ("bert-base-uncased", "bert-base"),
    ],
)
def test_a_preset_is_found_by_any_of_its_names(typed, name, tmp_path):
    spec = resolve(typed, base=tmp_path)
    assert (spec.name, spec.source) == (name, "preset")
    assert spec.config == find(name).config


def test_a_resolved_preset_does_not_share_the_catalog(tmp_path):
    resolve("gpt2", base=tmp_path).config["n_layer"] = 1
    assert resolve("gpt2", base=tmp_path).config["n_layer"] == 12


def test_a_misspelt_preset_gets_the_nearest_names(tmp_path):
    assert "model 'gtp2' is unknown: did you mean gpt2" in refused("gtp2", tmp_path)
    assert "did you mean llama-3.1-8b" in refused("lama-3.1-8b", tmp_path)


# Configurations


def test_a_configuration_is_found_by_file_and_by_folder(base):
    by_file = resolve("config.json", base=base, block_class="GPT2Block")
    assert by_file.config == TINY == resolve(".", base=base).config
    assert (by_file.source, by_file.block_class) == ("config", "GPT2Block")
    assert resolve(str(base), base=Path("/")).config == TINY


def test_a_path_with_a_presets_name_is_reached_by_a_dot(base):
    (base / "gpt2").mkdir()
    (base / "gpt2" / "config.json").write_text(json.dumps(TINY))
    assert resolve("gpt2", base=base).source == "preset"
    assert resolve("./gpt2", base=base).config == TINY


def test_numbers_that_json_has_no_words_for_are_written_as_transformers_does(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "a", "limits": [0.0, Infinity, -Infinity, 1e999], "deep": {"one": NaN, "__float__": [NaN]}}'
    )
    config = resolve(".", base=tmp_path).config
    infinity, nan = {"__float__": "Infinity"}, {"__float__": "NaN"}
    assert config == {
        "model_type": "a",
        "limits": [0.0, infinity, {"__float__": "-Infinity"}, infinity],
        "deep": {"one": nan, "__float__": [nan]},
    }
    assert tagged(config) == config
    read = untagged(config)
    assert read["limits"] == [0.0, math.inf, -math.inf, math.inf]
    assert math.isnan(read["deep"]["one"])
    assert math.isnan(read["deep"]["__float__"][0])


@pytest.mark.parametrize("value", [{"__float__": "12"}, {"__float__": ["NaN"]}, {"__float__": 1, "other": 2}])
def test_what_only_looks_like_such_a_number_stays_as_it_is(value):
    assert untagged(value) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not valid JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
        ("[1]", "holds a list, not the key-value pairs"),
        ("{}", "the key model_type is missing"),
        ('{"tokenizer_class": "X"}', "this is a tokenizer's configuration"),
        ('{"peft_type": "LORA"}', "this is the configuration of a PEFT adapter"),
        ('{"model_type": 3}', "model_type must be the name of an architecture, not 3"),
        ('{"model_type": "gpt2", "n_layer": 0}', "n_layer must be a whole number above zero, not 0"),
        ('{"model_type": "gpt2", "n_embd": "768"}', "n_embd must be a whole number above zero, not '768'"),
        ('{"model_type": "gpt2", "n_embd": 100, "n_head": 3}', "n_embd (100) is not a multiple of n_head (3)"),
        ('{"model_type": "a", "quantization_config": {"bits": 4}}', "of a quantized checkpoint"),
        ('{"model_type": "a", "auto_map": {"AutoConfig": "c.C"}}', "is not run unless you pass --trust-remote-code"),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_refused_with_what_is_wrong(text, problem, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(text)
    message = refused("config.json", tmp_path)
    assert problem in message
    assert str(file) in message


def test_all_mistakes_of_a_configuration_are_told_at_once(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "gpt2", "n_layer": -1, "n_head": 0, "vocab_size": true}'
    )
    assert len(refused(".", tmp_path).splitlines()) == 3


def test_a_width_that_heads_do_not_divide_is_fine_where_heads_have_their_own(tmp_path):
    config = {"model_type": "gemma2", "hidden_size": 2304, "num_attention_heads": 7, "head_dim": 256}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert resolve(".", base=tmp_path).config == config


def test_what_is_no_configuration_at_all_is_told_apart(tmp_path, base):
    (tmp_path / "weights").write_bytes(b"\x80\x81\xfe\xff")
    assert "not a text file" in refused("weights", tmp_path)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(2**30)
    assert "is larger than 4 MiB" in refused("model.safetensors", tmp_path)
    assert "does not exist" in refused("./nowhere.json", tmp_path)
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "outer" / "inner" / "config.json").write_text(json.dumps(TINY))
    assert "holds no config.json; its folders inner do" in refused("outer", tmp_path)


def test_trusted_code_is_referred_to_where_it_lies(tmp_path):
    config = {"model_type": "new", "auto_map": {"AutoConfig": "configuration.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = resolve(".", base=tmp_path, trust_remote_code=True)
    assert spec.config["auto_map"] == {"AutoConfig": f"{tmp_path}--configuration.Config"}
    assert spec.trust_remote_code


# Functions


@pytest.mark.parametrize(
    ("typed", "name", "folder"),
    [
        ("mine:build", "mine:build", "."),
        ("mine.py:build", "mine:build", "."),
        ("./mine.py:build", "mine:build", "."),
        ("package/model.py:make", "model:make", "package"),
        ("package.model:make", "package.model:make", "."),
    ],
)
def test_a_function_is_located_without_importing_it(typed, name, folder, base):
    spec = resolve(typed, base=base)
    assert (spec.name, spec.source, spec.config) == (name, "function", None)
    assert Path(spec.path) == base / folder


def test_an_installed_module_needs_no_folder(tmp_path):
    assert resolve("autotune.models.resolve:resolve", base=tmp_path).path is None


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("mine:biuld", "does not define biuld; did you mean build?"),
        ("nowhere:build", "module nowhere is neither in"),
        ("nowhere/mine.py:build", "does not exist"),
        ("mine.py", "name the function too, like mine.py:build"),
        ("mine:", "write it like package.module:function"),
        (":build", "write it like package.module:function"),
        ("bad.py:build", "bad.py, line 1: "),
        ("my-model.py:build", "name it like my_model.py"),
        ("code.py:build", "has the name of a library (code); rename it"),
        ("code:build", "has the name of a library; rename it"),
    ],
)
def test_a_function_that_cannot_be_imported_is_refused(typed, problem, base):
    (base / "bad.py").write_text("def build(:\n")
    (base / "my-model.py").write_text("def build(): ...\n")
    (base / "code.py").write_text("def build(): ...\n")
    assert problem in refused(typed, base)


def test_a_name_that_only_importing_would_reveal_is_let_through(base):
    (base / "lazy.py").write_text("from somewhere import *\n")
    assert resolve("lazy:build", base=base).name == "lazy:build"


def test_an_empty_name_says_what_a_model_can_be(tmp_path):
    assert "config.json or its folder, owner/name on the Hugging Face hub, or module:function" in refused(
        "", tmp_path
    )


# The hub


@pytest.fixture(scope="module")
def hub():
    return run(str(DATA / "hub.py"))


def test_a_model_on_the_hub_resolves_from_its_configuration_alone(hub):
    assert (hub["fine"]["source"], hub["fine"]["config"]) == ("hub", TINY)
    assert hub["fetched"] == ["config.json"]


def test_what_was_fetched_once_needs_no_network(hub):
    assert hub["cached"] == hub["fine"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing", "there is no model someone/missing on http"),
        ("gated", "model someone/gated is gated: accept its licence"),
        ("empty", "holds no config.json"),
        ("broken", "config.json of someone/broken is not valid JSON"),
        ("remote", "is not run unless you pass --trust-remote-code"),
        ("offline", "model someone/other is not on this machine, and http"),
    ],
)
def test_what_the_hub_refuses_is_explained(hub, name, problem):
    assert problem in hub[name]


def test_trusted_code_from_the_hub_is_referred_to_by_its_name(hub):
    assert hub["trusted"]["config"]["auto_map"] == {"AutoConfig": "someone/remote--configuration.Config"}


def test_nothing_of_this_loads_torch_or_transformers(hub):
    """Presets, configurations, functions and the hub alike: the last went through all the modules."""
    assert hub["loaded"] == []
