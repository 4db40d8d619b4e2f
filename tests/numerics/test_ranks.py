"""Two ranks compute what one does with their batches together.

Not bit for bit: sums over samples are taken in another order. In fp32 that is rounding; in bf16 the products round
already, and FSDP2 carries the residual stream in bf16. With uneven padding the ranks have unequal numbers of targets.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.numerics.on_ranks import CASES, train

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    file = tmp_path_factory.mktemp("ranks") / "results.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
               "-m", "tests.numerics.on_ranks", str(file)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(file)


@pytest.mark.parametrize("position", range(len(CASES)), ids=["-".join(case.values()) for case in CASES])
def test_two_ranks_train_as_one_with_both_batches(of_two, position):
    case = CASES[position]
    losses, parameters = of_two[position]
    expected, reference = train({**case, "sharding": "none"})
    assert losses[-1] < losses[0]
    assert losses == pytest.approx(expected, rel=1e-5 if case["precision"] == "fp32" else 0.02)
    names = sorted(name.removeprefix("module.") for name in parameters)
    assert names == sorted(reference)
    if case["optimizer"] == "sgd":  # AdamW's first steps follow the sign of a gradient, however small
        for name, value in reference.items():
            torch.testing.assert_close(parameters[name], value, rtol=1e-4, atol=1e-6)
