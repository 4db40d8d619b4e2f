"""What offload needs off a device: bytes of parameters, gradients and state, each rank its share."""

import pytest

from autotune.candidate import Candidate
from autotune.demand import offloaded_bytes
from tests.unit.executor import FACTS

LARGE = FACTS.model_copy(update={"parameters": 10**9, "trainable_parameters": 10**9})


@pytest.mark.parametrize(
    ("fields", "each"),
    [({}, 0), ({"offload": "optimizer"}, 8), ({"offload": "gradients"}, 12), ({"offload": "full"}, 16),
     ({"offload": "optimizer", "precision": "bf16-pure"}, 4), ({"offload": "full", "optimizer": "sgd"}, 8)],
)  # fmt: skip
def test_each_level_takes_its_bytes_a_parameter(fields, each):
    assert offloaded_bytes(Candidate(**fields), LARGE) == each * 10**9


@pytest.mark.parametrize(
    ("sharding", "sharers"), [("ddp", 1), ("zero2", 16), ("fsdp2", 16), ("hsdp", 8), ("zero3", 16)]
)
def test_ranks_that_shard_need_their_share(sharding, sharers):
    candidate = Candidate(sharding=sharding, offload="optimizer")
    assert offloaded_bytes(candidate, LARGE, ranks=16, nodes=2) == 8 * 10**9 // sharers
