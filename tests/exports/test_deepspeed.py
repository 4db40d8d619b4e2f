"""The export to DeepSpeed: its JSON says all that sets memory."""

import json

import pytest

from autotune.exports import export
from autotune.exports.fields import CannotExport
from tests.configurations import make_best


def best(**options):
    return make_best(
        **{"device": "cuda", "gpus": 8, "engine": "deepspeed", "sharding": "zero3", "steps": 5} | options
    )


def settings(**options):
    return json.loads(export(best(**options), "deepspeed")["deepspeed.json"])


def test_batch_sizes_are_those_of_all_ranks():
    said = settings(micro_batch=4)
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert [said[name] for name in names] == [4 * 5 * 8, 4, 5]


@pytest.mark.parametrize("sharding", ["zero1", "zero2", "zero3"])
def test_nothing_that_sets_memory_is_left_to_a_default(sharding):
    zero = settings(sharding=sharding)["zero_optimization"]
    assert zero["stage"] == int(sharding[-1])
    assert zero["reduce_bucket_size"] == 64 * 64, "a width by a width, as it was measured"
    assert zero["allgather_bucket_size"] == 500_000_000
    of_stage_3 = {"stage3_prefetch_bucket_size", "stage3_max_live_parameters", "sub_group_size"}
    assert (of_stage_3 <= set(zero)) == (sharding == "zero3")
    assert "auto" not in export(best(sharding=sharding), "deepspeed")["deepspeed.json"]


def test_a_model_of_unknown_width_gets_the_sizes_that_deepspeed_had():
    unknown = best()
    unknown = unknown.model_copy(update={"facts": unknown.facts.model_copy(update={"hidden": 0})})
    zero = json.loads(export(unknown, "deepspeed")["deepspeed.json"])["zero_optimization"]
    assert zero["reduce_bucket_size"] == 500_000_000
    assert zero["stage3_param_persistence_threshold"] == 100_000


def test_the_section_on_checkpointing_is_written_and_the_layers_checkpoint_by_themselves():
    files = export(best(checkpointing="full"), "deepspeed")
    section = json.loads(files["deepspeed.json"])["activation_checkpointing"]
    assert (section["partition_activations"], section["cpu_checkpointing"]) == (False, False)
    assert json.loads(files["training.json"])["checkpointing"] == "full"


def test_what_its_cpu_checkpointing_seems_to_be_is_refused():
    with pytest.raises(CannotExport) as refusal:
        export(best(checkpointing="offloaded"), "deepspeed")
    assert set(refusal.value.reasons) == {"checkpointing"}
    assert "cpu_checkpointing" in refusal.value.reasons["checkpointing"]


def test_what_torch_sharded_is_no_export_to_deepspeed():
    with pytest.raises(CannotExport) as refusal:
        export(best(engine="torch", sharding="zero2"), "deepspeed")
    assert set(refusal.value.reasons) == {"engine"}


def test_offload_goes_to_host_memory():
    zero = settings(offload="full")["zero_optimization"]
    assert zero["offload_param"] == zero["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
