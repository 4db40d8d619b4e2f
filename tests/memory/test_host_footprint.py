"""What offload and the build of a model need off a device."""

import pytest

from autotune.candidate import Candidate
from autotune.memory.host_footprint import built_bytes, offloaded_bytes, pinned_bytes
from tests.fakes.executor import FACTS

LARGE = FACTS.model_copy(update={"parameters": 10**9, "trainable_parameters": 10**9})


@pytest.mark.parametrize(
    ("fields", "each"),
    [({}, 0), ({"offload": "optimizer"}, 8), ({"offload": "gradients"}, 12), ({"offload": "full"}, 16),
     ({"offload": "optimizer", "precision": "bf16-pure"}, 4), ({"offload": "full", "optimizer": "sgd"}, 8)],
)  # fmt: skip
def test_each_level_takes_its_bytes_a_parameter(fields, each):
    assert offloaded_bytes(Candidate(**fields), LARGE) == each * 10**9


@pytest.mark.parametrize(
    ("precision", "offload", "each"),
    [("bf16", "optimizer", 18), ("fp32", "optimizer", 20), ("bf16", "full", 20), ("bf16", "none", 0)],
)
def test_deepspeed_keeps_masters_and_gradients_beside_the_state(precision, offload, each):
    """As its traces have it: `host_peak_bytes` of them is 9.0 bytes a parameter on each of two ranks in bf16."""
    candidate = Candidate(engine="deepspeed", sharding="zero3", precision=precision, offload=offload)
    assert offloaded_bytes(candidate, LARGE, ranks=2) == each * 10**9 // 2


@pytest.mark.parametrize(
    ("sharding", "sharers"), [("ddp", 1), ("zero2", 16), ("fsdp2", 16), ("hsdp", 8), ("zero3", 16)]
)
def test_ranks_that_shard_need_their_share(sharding, sharers):
    candidate = Candidate(sharding=sharding, offload="optimizer")
    assert offloaded_bytes(candidate, LARGE, ranks=16, nodes=2) == 8 * 10**9 // sharers


@pytest.mark.parametrize(
    ("fields", "own", "wholes"),
    [
        ({}, False, 0), ({}, True, 8),
        ({"sharding": "ddp"}, False, 0),
        ({"sharding": "fsdp2"}, False, 1), ({"sharding": "fsdp2"}, True, 8),
        ({"tensor_parallel": 4}, False, 1), ({"tensor_parallel": 4, "sharding": "zero2"}, False, 1),
        ({"sharding": "zero2", "engine": "deepspeed"}, False, 0),
        ({"sharding": "zero3", "engine": "deepspeed"}, False, 8),
        ({"offload": "full", "precision": "bf16-pure"}, False, 0.5),
    ],
)  # fmt: skip
def test_what_is_shared_out_is_built_by_one_rank_for_all(fields, own, wholes):
    assert built_bytes(Candidate(**fields), LARGE, 8, own, on_cpu=False) == wholes * 4 * 10**9


def test_a_function_builds_on_the_cpu_where_that_is_the_device():
    assert built_bytes(Candidate(), LARGE, 8, own=True, on_cpu=True) == 0


def test_pinned_memory_comes_in_powers_of_two():
    candidate = Candidate(offload="gradients")
    assert pinned_bytes(candidate, LARGE) == 12 * 10**9, (
        "an older record does not say what they are rounded to"
    )
    rounded = LARGE.model_copy(update={"pinned_parameters": 17 * 10**8})
    assert pinned_bytes(candidate, rounded, ranks=2) == 12 * 10**9 * 17 // 10
    assert offloaded_bytes(candidate, rounded) == 12 * 10**9, "files are as long as what is in them"
