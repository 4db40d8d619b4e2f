"""Two ranks compute what one does with their batches together, under every sharding, checkpointing and precision.

Not bit for bit: sums over samples are taken in another order. In fp32 that is rounding. In bf16 a product's inputs and
result are rounded to 8 bits, by up to 2^-9 of each; FSDP2 carries the residual stream in bf16 beside that, where
autocast may keep it in fp32. Each of the tiny model's two blocks rounds it twice, forward and backward, so gradients
may differ by some eight roundings of 2^-9, one in 64. With uneven padding the ranks have unequal numbers of targets.
"""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.numerics.on_ranks import CASES, train
from tests.numerics.runs import norm

ROOT = Path(__file__).parents[2]
BF16 = 2**-6


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    file = tmp_path_factory.mktemp("ranks") / "results.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
               "-m", "tests.numerics.on_ranks", str(file)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(file)


@cache
def of_one(**case):
    return train(case)


@pytest.mark.parametrize("position", range(len(CASES)), ids=["-".join(case.values()) for case in CASES])
def test_two_ranks_train_as_one_with_both_batches(of_two, position):
    case = CASES[position]
    losses, parameters, gradients = of_two[position]
    # What moves memory alone changes nothing on one rank: other tests hold that, bit for bit.
    alone = {name: value for name, value in case.items() if name not in {"checkpointing", "offload"}}
    expected, reference, expected_gradients = of_one(**{**alone, "sharding": "none"})
    fp32 = case["precision"] == "fp32"
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
    for name, value in reference.items():
        tolerance = (
            {"rtol": 1e-4, "atol": 1e-6} if fp32 else {"rtol": BF16, "atol": BF16 * float(value.abs().max())}
        )
        torch.testing.assert_close(parameters[name], value, **tolerance)
