"""The export to torchtitan: its words for what was measured, and what of it is not proven there."""

import json
from pathlib import Path

import pytest

from autotune.exports import export, not_proven
from autotune.exports.fields import CannotExport
from autotune.models.resolve import resolve
from tests.configurations import make_best


def llama(**options):
    return make_best(model=resolve("tiny-llama", base=Path()), **options)


def titan(best):
    return json.loads(export(best, "torchtitan")["titan.json"])


def refused(best):
    with pytest.raises(CannotExport) as refusal:
        export(best, "torchtitan")
    return set(refusal.value.reasons)


def test_batch_sizes_are_of_a_rank_and_of_all():
    said = titan(llama(device="cuda", gpus=8, sharding="fsdp2", micro_batch=4, steps=5))
    assert (said["local_batch_size"], said["global_batch_size"]) == (4, 160)


@pytest.mark.parametrize(
    ("precision", "types"),
    [("fp32", ["float32"] * 2), ("bf16", ["float32", "bfloat16"]), ("bf16-pure", ["bfloat16"] * 2)],
)
def test_precision_is_type_of_parameters_and_of_products(precision, types):
    said = titan(llama(precision=precision))
    assert [said["dtype"], said["mixed_precision_param"]] == types


@pytest.mark.parametrize(
    ("sharding", "replicas", "shards", "reshard"),
    [
        ("ddp", 16, 1, "always"),
        ("fsdp2", 1, 16, "always"),
        ("zero2", 1, 16, "never"),
        ("hsdp", 2, 8, "always"),
    ],
)
def test_shardings_are_degrees(sharding, replicas, shards, reshard):
    best = llama(device="cuda", gpus=16, sharding=sharding).model_copy(update={"nodes": 2})
    said = titan(best)
    assert said["data_parallel_replicate_degree"] == replicas
    assert (said["data_parallel_shard_degree"], said["fsdp_reshard_after_forward"]) == (shards, reshard)


def test_another_model_than_its_llama_is_refused():
    assert refused(make_best()) == {"model"}


def test_it_is_never_proven_there():
    sentences = not_proven(llama(), "torchtitan")
    assert len(sentences) == 2
    assert len(not_proven(llama(device="cuda", attention="flex_attention"), "torchtitan")) == 1


def test_one_rank_starts_by_torchs_launcher_too():
    launch = export(llama(), "torchtitan")["launch.sh"]
    assert "--nproc_per_node=1 -m torchtitan.train --module titan_config --config tuned" in launch
