"""The stand-in for CUDA, tried in a process that has run no backward pass yet, as a worker's is."""

import subprocess
import sys
from pathlib import Path

from tests.fresh_process import run_alone

HERE = Path(__file__).parent


def test_the_stand_in_follows_the_rules_of_cuda():
    run_alone(HERE / "on_fake_cuda.py")


def test_a_process_that_has_run_a_backward_pass_is_told_to_start_another():
    script = """
import torch
torch.ones(1, requires_grad=True).sum().backward()
from autotune.worker.tracing.fakes.cuda import fake_cuda
try:
    with fake_cuda():
        pass
except RuntimeError as error:
    assert "fresh process" in str(error), error
else:
    raise SystemExit("nothing was said")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=HERE.parent.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
