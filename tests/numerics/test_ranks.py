"""Several ranks compute what one does with their batches together, under every sharding, checkpointing and precision.

Not bit for bit: sums over samples are taken in another order. In fp32 that is rounding. In bf16 a product's inputs and
result are rounded to 8 bits, by up to 2^-9 of each; FSDP2 carries the residual stream in bf16 beside that, where
autocast may keep it in fp32. Each of the tiny model's two blocks rounds it twice, forward and backward, so gradients
may differ by some eight roundings of 2^-9, one in 64. With uneven padding the ranks have unequal numbers of targets.
"""

import sys
from functools import cache

import pytest
import torch

from tests.numerics.building import built
from tests.numerics.on_ranks import ACCUMULATION, BUILT, CASES, HYBRID, MICRO_BATCH, train
from tests.numerics.once import once
from tests.numerics.runs import norm

ON_RANKS = [sys.executable, "-m", "tests.numerics.on_ranks"]
"""Forks its ranks: processes that share one import."""
BF16 = 2**-6
ROUNDING = 2**-9
"""Half a unit in the last place of bf16's eight digits, by which a reduction in bf16 rounds: what each rank sends, and
each partial sum, of which two nodes of two have two. It does not all go one way, so the norm stays below their sum."""


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    return torch.load(
        once(tmp_path_factory, "ranks-of-two.pt", lambda into: [*ON_RANKS, str(into), "CASES", "2"])
    )


@pytest.fixture(scope="module")
def of_four(tmp_path_factory):
    """Return what two nodes of two ranks give."""
    return torch.load(
        once(tmp_path_factory, "ranks-of-four.pt", lambda into: [*ON_RANKS, str(into), "HYBRID", "4"])
    )


@cache
def of_one(samples, **case):
    return train(case, samples=samples)


@pytest.mark.parametrize(
    "position", range(len(CASES)), ids=["-".join(map(str, case.values())) for case in CASES]
)
def test_two_ranks_train_as_one_with_both_batches(of_two, position):
    compare(CASES[position], of_two[position], 2 * ACCUMULATION * MICRO_BATCH)


@pytest.mark.slow
@pytest.mark.parametrize(
    "position", range(len(HYBRID)), ids=["-".join(map(str, case.values())) for case in HYBRID]
)
def test_two_nodes_of_two_ranks_train_as_one_with_all_four_batches(of_four, position):
    compare(HYBRID[position], of_four[position], 4 * ACCUMULATION * MICRO_BATCH)


@pytest.mark.parametrize("position", range(len(BUILT)), ids=["-".join(map(str, c.values())) for c in BUILT])
def test_what_one_rank_draws_for_all_is_what_it_draws_alone(of_two, position):
    found, alone = of_two[len(CASES)][position], built(BUILT[position]["name"])
    assert found.keys() == alone.keys()
    for name, value in alone.items():
        assert torch.equal(found[name], value), name


def test_only_one_rank_ever_holds_a_sharded_model_whole(of_two):
    (first, second), size = of_two[len(CASES) + 1]
    assert first > size
    assert second < 0.8 * size  # half of it in shards, and a block or two


def compare(case, found, samples):
    losses, parameters, gradients = found
    # What moves memory alone changes nothing on one rank: other tests hold that, bit for bit.
    alone = {
        name: value
        for name, value in case.items()
        if name not in {"checkpointing", "checkpointed_blocks", "offload", "reduce_dtype", "compile"}
    }
    expected, reference, expected_gradients = of_one(samples, **{**alone, "sharding": "none"})
    reduced = case.get("reduce_dtype") == "bf16"
    fp32 = case["precision"] == "fp32" and not reduced
    assert losses[-1] < losses[0]
    assert losses == pytest.approx(expected, rel=1e-5 if fp32 else BF16)
    names = sorted(name.removeprefix("module.") for name in parameters)
    assert names == sorted(reference)
    if case["optimizer"] != "sgd":  # AdamW's first steps follow the sign of a gradient, however small
        return
    assert len(gradients) == len(losses)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert all(gradient.dtype == torch.float32 for gradient in ours)
        error = norm([a - b for a, b in zip(ours, theirs, strict=True)]) / norm(theirs)
        assert error < (1e-5 if fp32 else BF16)
        assert not reduced or ROUNDING / 8 < error < 3 * ROUNDING
    for name, value in reference.items():
        tolerance = (
            {"rtol": 1e-4, "atol": 1e-6} if fp32 else {"rtol": BF16, "atol": BF16 * float(value.abs().max())}
        )
        torch.testing.assert_close(parameters[name], value, **tolerance)
