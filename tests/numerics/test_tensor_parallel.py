"""Ranks that share one model's matrices compute what one rank does with the same samples.

Not bit for bit: the products of a row are summed in as many parts as there are ranks. In fp32 that is rounding. In bf16
each part is rounded to 8 bits before they are added, so that a gradient is off by a few times 2^-8 of its norm, which
accumulates over a handful of products in the two blocks.
"""

import sys

import pytest
import torch

from tests.numerics.building import built
from tests.numerics.on_tensor_ranks import BUILT, DROPPING, FOUR, TWO, train
from tests.numerics.once import once

TOLERANCE = {"fp32": 2e-6, "bf16": 0.02, "bf16-pure": 0.02}
"""Of the norm of all gradients: some ten roundings to 24 bits, or to 8."""


def launch(factory, name, ranks, cases):
    command = [sys.executable, "-m", "tests.numerics.on_tensor_ranks"]
    return torch.load(once(factory, name, lambda into: [*command, str(into), cases, str(ranks)]))


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    return launch(tmp_path_factory, "cut-in-two.pt", 2, "TWO")


def check(case, found, share):
    losses, gradients, held, _ = found
    alone = {name: value for name, value in case.items() if name not in {"sharding", "offload"}}
    expected, reference, whole, _ = train(alone)
    tolerance = TOLERANCE[case["precision"]]
    assert losses == pytest.approx(expected, rel=tolerance)
    if case["precision"] != "bf16-pure":  # whose updates are lost at these rates
        assert losses[-1] < losses[0]
    for ours, theirs in zip(gradients, reference, strict=True):
        assert ours.keys() == theirs.keys()
        difference = norm(ours[name].float() - theirs[name].float() for name in theirs)
        assert difference <= tolerance * norm(value.float() for value in theirs.values())
    # Norms are whole on every rank of a pair, and all else is cut.
    for ours, theirs in zip(held[:2], whole[:2], strict=True):
        assert ours == pytest.approx(theirs / share, rel=0.01)


def norm(tensors):
    return float(torch.stack([tensor.norm() for tensor in tensors]).norm())


@pytest.mark.parametrize("position", range(len(TWO)), ids=["-".join(case.values()) for case in TWO])
def test_two_ranks_with_one_model_train_as_one(of_two, position):
    check(TWO[position], of_two[position], share=2)


def check_built(found):
    for name, together in zip(BUILT, found, strict=True):
        alone = built(name)
        assert together.keys() == alone.keys()
        assert all(torch.equal(together[part], value) for part, value in alone.items())


def test_slices_are_of_what_one_rank_draws_alone(of_two):
    check_built(of_two[-1])


def test_ranks_with_one_model_drop_alike(of_two):
    losses, _, _, apart = of_two[len(TWO)]
    assert apart == 0.0
    assert losses != of_two[TWO.index({"model": "gpt_neox", "precision": "fp32"})][0], DROPPING


@pytest.mark.slow
def test_two_pairs_of_ranks_train_as_one(tmp_path_factory):
    *found, of_built = launch(tmp_path_factory, "cut-and-sharded.pt", 4, "FOUR")
    for case, results in zip(FOUR, found, strict=True):
        check(case, results, share=4)
    check_built(of_built)
