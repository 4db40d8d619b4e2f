"""Every legal pair of values of the default space, against the plain run in the same precision."""

from itertools import combinations

import pytest

from autotune.candidate import Candidate
from autotune.search.shipped import load_space
from autotune.techniques.check import refusal
from tests.numerics.runs import plain, train

SPACE = load_space("default")
PAIRS = [
    {one: value, other: another}
    for one, other in combinations(SPACE.axes, 2)
    for value in SPACE.axes[one]
    for another in SPACE.axes[other]
]
LEGAL = [pair for pair in PAIRS if not refusal(Candidate(**pair))]


def test_only_pairs_with_a_reason_are_left_out():
    assert len(LEGAL) > 0.9 * len(PAIRS)
    assert {tuple(pair.items()) for pair in PAIRS if pair not in LEGAL} == {
        (("precision", "fp16"), ("offload", "full"))
    }


@pytest.mark.parametrize("pair", LEGAL, ids=str)
def test_every_pair_computes_what_the_plain_run_does(pair):
    precision = pair.get("precision", "bf16")
    # The axes of this space but precision move memory alone: bit for bit.
    assert train("gpt2", **{"precision": precision, **pair}) == plain("gpt2", precision)
