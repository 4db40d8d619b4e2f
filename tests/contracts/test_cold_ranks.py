"""The probes of `test_ranks.py` with ranks that start cold, each importing all by itself."""

import pytest

from autotune.probe.launch import Launcher, launch
from tests.contracts import test_ranks
from tests.contracts.test_ranks import (  # noqa: F401 - collected here once more, with the fixture below
    check_verdict_of_all,
    environment,
    test_a_model_is_looked_at_by_one_process,
    test_a_rank_that_hangs_ends_the_group_at_the_deadline,
    test_a_rank_that_is_killed_ends_the_group,
    test_a_rank_that_leaves_early_ends_the_group,
    test_an_oom_of_one_rank_is_the_probes_with_its_rank,
    test_an_oom_of_the_rank_that_builds_for_all_ends_those_that_wait_for_it,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def launcher() -> Launcher:
    """What launches each rank."""
    return launch


@pytest.mark.parametrize(
    ("sharding", "kind", "devices", "nodes"), [("ddp", "train", 2, 1), ("hsdp", "prove", 4, 2)]
)
def test_ranks_train_together_and_give_one_verdict(launcher, tmp_path, sharding, kind, devices, nodes):
    check_verdict_of_all(launcher, tmp_path, sharding, kind, devices, nodes)


def test_none_of_them_is_left_out() -> None:
    assert {name for name in vars(test_ranks) if name.startswith("test_")} <= globals().keys()
