"""What families say of values without being asked for a candidate."""

import pytest

from autotune.techniques.families import slowdown


@pytest.mark.parametrize(
    ("axis", "value"), [("checkpointed_blocks", 2), ("checkpointed_blocks", "all"), ("micro_batch", 8)]
)
def test_what_declares_no_cost_of_time_multiplies_it_by_one(axis, value):
    assert slowdown(axis, value) == 1.0


def test_a_technique_that_costs_time_says_so():
    assert slowdown("checkpointing", "full") > slowdown("checkpointing", "selective") > 1
