"""What a relaunch may differ by."""

import pytest

from autotune.outcome import Ok
from autotune.proof import GLOO_NOISE, judge
from autotune.specs import Limits
from autotune.units import MIB
from tests.configurations import make_best


@pytest.mark.parametrize(
    ("gpus", "device", "passed"), [(4, "cpu", True), (1, "cpu", False), (4, "cuda", False)]
)
def test_what_gloos_threads_hold_fails_no_proof_of_a_tiny_model(gpus, device, passed):
    best = make_best(gpus=gpus, device=device)
    best = best.model_copy(update={"memory": best.memory.model_copy(update={"allocated": 16 * MIB})})

    def proven(allocated):
        memory = best.memory.model_copy(update={"allocated": allocated})
        fine = Ok(memory=memory, timing=best.timing, phases=(), losses=(5.0, 4.0), accumulation_steps=3)
        return judge(best, fine, 1.0, Limits(), judge_speed=False).passed

    assert proven(16 * MIB + GLOO_NOISE) is proven(16 * MIB - GLOO_NOISE) is passed
    assert not proven(17 * MIB + GLOO_NOISE)
