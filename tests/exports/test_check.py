"""Two steps from exported files: what was recorded is what they are compared with."""

import json

import pytest

from autotune.errors import InputError, ProbeError
from autotune.exports.check import check, judge
from autotune.options import Limits
from autotune.units import MIB
from tests.configurations import make_best
from tests.script.watched import step, watched

GIB = 1024 * MIB

TRAINING = """\
import os
from pathlib import Path

for rank, text in enumerate({records}):
    (Path(os.environ["AUTOTUNE_WATCH"]) / f"process-{{rank}}.json").write_text(text)
print("a last word")
raise SystemExit({code})
"""


def best_of(allocated, **options):
    best = make_best(**options)
    memory = best.memory.model_copy(update={"allocated": allocated, "budget": 3 * GIB})
    return best.model_copy(update={"memory": memory})


def record(rank, steps):
    """Return what the watch writes of a rank whose steps took 1 second, then 2."""
    taken = [
        {**step(), "wait": 0.0, "others": [], "last": float(number), "optimizer": 0.0}
        for number in range(1, steps + 1)
    ]
    memory = {"baseline": 0, "peak": 0, "data": 0, "tensors": 100 + rank}
    return watched(rank=rank, steps=steps, records=taken, memory=memory).model_dump_json()


def files(ranks=1, steps=2, code=0):
    records = [record(rank, steps) for rank in range(ranks)]
    # No watch of its own in the program that stands for a training.
    return {
        "launch.sh": 'exec "$PYTHON" -I train.py\n',
        "train.py": TRAINING.format(records=records, code=code),
    }


def test_the_second_step_gives_the_speed_and_the_fullest_rank_the_peak():
    best = best_of(100, gpus=2, sharding="ddp")
    found = check(best, "native", files(ranks=2))
    assert found.peak == 101
    assert found.tokens_per_second == best.accumulation.effective / 2.0
    assert found.passed


@pytest.mark.parametrize(
    "said", [files(ranks=2), files(steps=1), files(code=7)], ids=["ranks", "steps", "code"]
)
def test_another_training_than_was_asked_for_is_an_error(said):
    with pytest.raises(ProbeError):
        check(best_of(100), "native", said)


def test_an_error_shows_what_the_training_said_last():
    with pytest.raises(ProbeError) as error:
        check(best_of(100), "native", files(code=7))
    assert "ended with 7" in str(error.value)
    assert "a last word" in str(error.value)


def test_a_library_that_is_not_installed_is_named():
    with pytest.raises(InputError) as refusal:
        check(best_of(100), "axolotl", files())
    assert refusal.value.about == ("check",)


def test_a_prediction_has_no_record_to_compare_with():
    with pytest.raises(InputError) as refusal:
        check(best_of(100).model_copy(update={"evidence": "predicted"}), "native", files())
    assert refusal.value.about == ("check",)


@pytest.mark.parametrize(
    ("peak", "other", "passed"),
    [
        (GIB, False, True),
        (GIB + 40 * MIB, False, True),
        (GIB + 80 * MIB, False, False),
        (GIB - 80 * MIB, False, False),
        (GIB - 80 * MIB, True, True),
        (4 * GIB, True, False),
    ],
)
def test_a_peak_is_the_recorded_one_within_the_tolerance_of_proofs(peak, other, passed):
    """What runs something else has to fit, and nothing more."""
    found = judge(best_of(GIB), peak, 100.0, other, Limits())
    assert found.passed is passed
    assert json.loads(found.model_dump_json())["judged"] is not other


@pytest.mark.parametrize(("peak", "passed"), [(61, True), (3, True), (66 + 80, False)])
def test_what_a_compiler_takes_is_no_other_peak_on_a_processor(peak, passed):
    """The kernel counts it beside the tensors, when it was recorded as well."""
    best = best_of(3 * MIB, compile="regional")
    memory = best.memory.model_copy(update={"baseline": 341 * MIB, "device_peak": (341 + 66) * MIB})
    best = best.model_copy(
        update={"memory": memory, "device": best.device.model_copy(update={"kind": "cpu"})}
    )
    found = judge(best, peak * MIB, 100.0, False, Limits())
    assert found.passed is passed
    assert "66 MiB with libraries" in found.why
