"""What a relaunch may differ by."""

import pytest

from autotune.outcome import Ok
from autotune.proof import CPU_NOISE, judge
from autotune.specs import Limits
from autotune.units import MIB
from tests.configurations import make_best


@pytest.mark.parametrize(
    ("gpus", "device", "passed"), [(4, "cpu", True), (1, "cpu", True), (4, "cuda", False)]
)
def test_what_libraries_hold_on_a_processor_fails_no_proof_of_a_tiny_model(gpus, device, passed):
    best = make_best(gpus=gpus, device=device)
    best = best.model_copy(update={"memory": best.memory.model_copy(update={"allocated": 16 * MIB})})

    def proven(allocated):
        memory = best.memory.model_copy(update={"allocated": allocated})
        fine = Ok(memory=memory, timing=best.timing, phases=(), losses=(5.0, 4.0), accumulation_steps=3)
        return judge(best, fine, 1.0, Limits(), judge_speed=False).passed

    assert proven(16 * MIB + CPU_NOISE) is proven(16 * MIB - CPU_NOISE) is passed
    assert proven(19 * MIB) is passed, "as far apart as was seen"
    assert not proven(17 * MIB + CPU_NOISE)
    assert not proven(15 * MIB - CPU_NOISE)
