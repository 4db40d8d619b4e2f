"""Every legal pair of fp8 with a value of another axis: torch emulates on a processor what a GPU multiplies.

As `test_pairs.py` does with the other values, on three families of models whose blocks have linear layers.
"""

import pytest
import torch

from tests.numerics.compared import compare, differing
from tests.numerics.on_pairs import GROUPS, arrays, model_of, on_tiny_models, train

pytest.importorskip("torchao", reason="torchao is not installed: pip install 'autotune[torchao]'")


@pytest.mark.parametrize("name", GROUPS["float8"].families)
@pytest.mark.parametrize("position", range(len(arrays()["float8"].candidates)))
def test_one_rank_computes_what_the_plain_run_does(position, name):
    values = arrays()["float8"].candidates[position]
    torch._dynamo.reset()
    with on_tiny_models():
        compare(values, name, train(values, model_of(name, values, 1)))


@pytest.mark.parametrize("group", ["float8-two", "float8-nodes"])
def test_several_ranks_compute_what_one_does(group, of_ranks):
    assert not differing(of_ranks(group), GROUPS[group].ranks)
