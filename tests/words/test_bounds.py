"""Numbers, names and values that describe no training: refused with the reason before any work."""

import json

import pytest

from autotune.errors import InputError
from autotune.estimation.request import EstimateRequest, settle
from autotune.executors.find import find_executor
from autotune.models.config import parse_config
from autotune.options import Limits, RunOptions
from autotune.run.best import Best
from autotune.run.spec import to_spec
from autotune.search.graph import MOST_NODES
from autotune.search.space import Space
from autotune.specs import DeviceSpec
from tests.configurations import make_best

GIVEN = {"model": "tiny-gpt2", "target_global_batch": "16K", "device": "cpu:1GiB"}


def refused(call, *arguments, **named):
    with pytest.raises(InputError) as caught:
        call(*arguments, **named)
    assert len(str(caught.value)) < 2000
    return str(caught.value)


def run(folder, **given):
    return to_spec(RunOptions.load({**GIVEN, **given}, "options"), lambda device, _: device, folder)


@pytest.mark.parametrize("digits", [20, 100, 5000])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gpus", "more than any published training has had"),
        ("nodes", "more than any published training has had"),
        ("seed", "the largest seed that numpy and transformers take"),
        ("seq_len", "the longest context of a model"),
        ("max_probes", "no search space has so many"),
        ("probe_timeout", "the seconds of a year"),
        ("time_budget", "the seconds of a year"),
        ("target_global_batch", "is more than"),
    ],
)
def test_numbers_of_many_digits_are_refused_with_the_reason(name, why, digits, tmp_path):
    number = 10 ** (digits - 1)
    given = {name: str(number) if digits < 4300 else "1" + "0" * (digits - 1)}
    said = refused(run, tmp_path, **given)
    assert why in said or "maximum size" in said or "not a duration" in said
    if name not in {"probe_timeout", "time_budget"} and digits < 300:
        assert "is more than" in refused(run, tmp_path, **{name: number})


def test_what_an_estimate_is_asked_is_bounded(tmp_path):
    for name, why in (
        ("micro_batch", "no device holds"),
        ("accumulation_steps", "micro-steps"),
        ("gpus", "published"),
    ):
        assert why in refused(EstimateRequest.gather, {"model": "tiny-gpt2", name: 10**20}, tmp_path)
    asked = EstimateRequest.gather({"model": "tiny-gpt2", "gpus": 10_000, "nodes": 10_000}, tmp_path)
    assert "--gpus x --nodes" in refused(settle, asked, tmp_path)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0, -1, 1.5])
@pytest.mark.parametrize("name", ["memory_tolerance", "speed_tolerance"])
def test_a_tolerance_is_a_share(name, value):
    assert name in refused(Limits.load, {name: value}, "limits")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "inf", "nan", "-1", "1e300"])
@pytest.mark.parametrize("name", ["probe_timeout", "proof_time", "time_budget"])
def test_a_duration_is_finite(name, value):
    assert name in refused(Limits.load, {name: value}, "limits")


@pytest.mark.parametrize(
    "text", ["cuda:99999", "cuda:²", "cuda:" + "9" * 5000, "cpu:" + "9" * 30 + "GiB", "cpu:-1GiB"]
)
def test_a_device_that_cannot_be_is_refused(text):
    with pytest.raises(ValueError, match=r"unknown|more than there is|not a quantity") as caught:
        DeviceSpec.parse(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "n_layer", "encoder_layers", "num_local_experts", "vocab_size"]
)
def test_a_configuration_without_an_end_is_refused(key):
    text = json.dumps({"model_type": "gpt2", "text_config": {key: 10**12}})
    assert f"text_config.{key}: 1000000000000 is more than" in refused(parse_config, text, "mine", False, ".")


def test_ranks_on_this_machine_share_its_memory():
    """A million of them would be started one by one."""
    with pytest.raises(InputError) as caught:
        find_executor(DeviceSpec.parse("cpu:1GiB"), None, 16_384)
    assert caught.value.about == ("gpus",)


def graph(nodes):
    return {
        "name": "mine",
        "description": "",
        "axes": {"precision": ["bf16"]},
        "graph": {"start": "n0", "nodes": nodes},
    }


def test_a_wide_graph_is_checked_in_time():
    """Every node has two ways to the next: twice as many paths with each."""
    end = {"title": "end", "set": {}}
    ways = {
        f"n{n}": {"title": "x", "set": {}, "next": {"ok": f"n{n + 1}", "oom": f"n{n + 1}"}}
        for n in range(100)
    }
    assert len(Space.load(graph({**ways, "n100": end}), "mine").graph.nodes) == 101
    many = {f"n{n}": {"title": "x", "set": {}, "next": {"ok": f"n{n + 1}"}} for n in range(MOST_NODES)}
    assert "at most 300 items" in refused(Space.load, graph({**many, f"n{MOST_NODES}": end}), "mine")


def test_what_a_space_says_is_drawn_as_text():
    node = {"title": 'x"]; click a "javascript:alert(1)" <b>\x1b[31m', "set": {}}
    drawn = Space.load(graph({"n0": node}), "mine").graph.mermaid()
    assert 'n0["x#34;]; click a #34;javascript:alert(1)#34; #60;b#62;\\x1b[31m"]' in drawn
    assert "pattern" in refused(Space.load, graph({"n0]; click a": node}), "mine")


@pytest.mark.parametrize(
    ("axis", "value"), [("tf32", 1), ("tensor_parallel", True), ("num_workers", 0.0), ("precision", ["bf16"])]
)
def test_a_value_of_an_axis_is_of_its_very_type(axis, value):
    space = graph({"n0": {"title": "x", "set": {}}})
    space["axes"][axis] = [value]
    assert "is not one of" in refused(Space.load, space, "mine")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens_per_second", float("inf")),
        ("seconds_per_global_step", float("nan")),
        ("gpus", 10**20),
        ("seed", -1),
    ],
)
def test_a_best_yaml_holds_finite_numbers(key, value):
    data = json.loads(make_best().model_dump_json())
    assert key in refused(Best.load, {**data, key: value}, "best.yaml")
