"""Every legal pair of values that a processor can run, with three families of models, against the plain run.

On one rank what moves memory alone changes no bit. All else sums in another order, or rounds: by 2^-24 in fp32, and by
2^-9 in 16 bits, where four blocks accumulate it. Candidates over several ranks are compared with one rank that takes
all samples; gradients that they add up in bf16 are rounded at least once more.
"""

from pathlib import Path

import pytest
import torch

from autotune.environment import how_to_install, installed
from tests.numerics.compared import compare, differing
from tests.numerics.on_pairs import GROUPS, arrays, model_of, on_tiny_models, train

NO_DEEPSPEED = f"the deepspeed package is not installed: {how_to_install('deepspeed')}"
TECHNIQUES = Path(__file__).parents[2] / "docs" / "techniques.md"


def test_every_legal_pair_is_in_a_candidate_and_the_page_says_how_many():
    held = set().union(*(array.covered for array in arrays().values()))
    for name, array in arrays().items():
        pairs = set(array.pairs())
        assert pairs == {pair for pair in pairs if pair in held} | set(array.illegal), name
        assert all(len(values) == len(array.axes) for values in array.candidates)
    assert f"{len(held):,} legal pairs" in TECHNIQUES.read_text()


@pytest.mark.parametrize("name", GROUPS["one"].families)
@pytest.mark.parametrize("position", range(len(arrays()["one"].candidates)))
def test_one_rank_computes_what_the_plain_run_does(position, name):
    values = arrays()["one"].candidates[position]
    torch._dynamo.reset()
    with on_tiny_models():
        compare(values, name, train(values, model_of(name, values, 1)))


@pytest.mark.timeout(900)  # a hundred trainings in one test
@pytest.mark.parametrize(
    "group",
    [
        "two",
        "nodes",
        "cut",
        "cut-shards",
        pytest.param(
            "deepspeed", marks=pytest.mark.skipif(installed("deepspeed") is None, reason=NO_DEEPSPEED)
        ),
    ],
)
def test_several_ranks_compute_what_one_does(group, of_ranks):
    assert not differing(of_ranks(group), GROUPS[group].ranks)
