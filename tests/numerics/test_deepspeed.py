"""Two ranks under DeepSpeed compute what one rank does with their batches together.

SGD in fp32 to rounding: sums over samples are taken in another order. In bf16 parameters and products round, and the
losses agree to that.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.numerics.on_ranks import DEEPSPEED, train

pytest.importorskip(
    "deepspeed", reason="the deepspeed package is not installed: pip install 'autotune[deepspeed]'"
)
# DeepSpeed compiles an extension when it is first used.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    file = tmp_path_factory.mktemp("deepspeed") / "results.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
               "-m", "tests.numerics.on_ranks", str(file), "DEEPSPEED"]  # fmt: skip
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(file)


@pytest.mark.parametrize(
    "position", range(len(DEEPSPEED)), ids=["-".join(map(str, c.values())) for c in DEEPSPEED]
)
def test_two_ranks_train_as_one_with_both_batches(of_two, position):
    case = DEEPSPEED[position]
    losses, parameters, _ = of_two[position]
    alone = {"engine": "torch", "sharding": "none", "compile": "none"}
    expected, reference, _ = train({**case, **alone})
    assert losses[-1] < losses[0]
    assert losses == pytest.approx(expected, rel=1e-5 if case["precision"] == "fp32" else 0.02)
    if case["optimizer"] == "sgd" and case["precision"] == "fp32":
        assert sorted(parameters) == sorted(reference)
        for name, value in reference.items():
            torch.testing.assert_close(parameters[name], value, rtol=1e-4, atol=1e-6)
