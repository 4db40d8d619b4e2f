import math
import sys
import time
from itertools import count
from types import SimpleNamespace

import pytest

from autotune.sampling import summarize
from autotune.search.comparison import CPU_NOISE
from autotune.worker.measuring import prove
from autotune.worker.measuring.prove import SAMPLES_KEPT, steps_that_fit
from autotune.worker.measuring.statistics import narrow, step_seconds, timing
from autotune.worker.measuring.steps import StepTimes


def test_the_interval_is_students():
    # Ten values of standard deviation 1: half-width = t(0.975, 9) / sqrt(10) = 2.262 / 3.1623
    values = [10 + offset for offset in (-1.5, -1, -0.5, -0.5, 0, 0, 0.5, 0.5, 1, 1.5)]
    scale = math.sqrt(9 / sum((value - 10) ** 2 for value in values))
    sample = summarize([10 + (value - 10) * scale for value in values])
    assert sample.mean == pytest.approx(10)
    assert sample.half_width == pytest.approx(2.262 / math.sqrt(10), rel=1e-3)


def test_one_value_has_no_interval():
    assert summarize([1.0]).half_width is None
    assert not narrow([StepTimes(1.0, 1.0, 1.0)], accumulation_steps=1)


def test_many_values_have_the_interval_of_31():
    values = [1.0, 3.0] * 50
    spread = math.sqrt(100 / 99)
    assert summarize(values).half_width == pytest.approx(2.042 * spread / 10)


def test_one_slow_step_in_five_is_left_out_of_the_mean_and_widens_its_interval_little():
    values = [1.0, 1.02, 0.98, 1.01, 3.0]
    assert summarize(values).mean == pytest.approx(1.402)
    trimmed = summarize(values, trimmed=0.2)
    assert trimmed.mean == pytest.approx(1.01)
    assert trimmed.count == 5
    # Winsorized: 1, 1.02, 1, 1.01, 1.02; deviation 0.01; t(0.975, 2) = 4.303
    assert trimmed.half_width == pytest.approx(4.303 * 0.01 / (0.6 * math.sqrt(5)))
    assert summarize(values[:4], trimmed=0.2) == summarize(values[:4])


def test_step_times_are_kept_in_order_and_of_many_their_means():
    few = [StepTimes(1.0, 2.0, 0.5), StepTimes(None, 2.0, 0.5)]
    assert step_seconds(few, micro_steps=3) == (4.5, 2.5)
    assert step_seconds((), micro_steps=3) == ()
    many = step_seconds([StepTimes(None, float(number), 0.0) for number in range(100)], micro_steps=1)
    assert len(many) == 25
    assert many[0] == pytest.approx(1.5)
    assert many[-1] == pytest.approx(97.5)


def test_without_accumulation_the_last_micro_step_stands_for_all():
    known = timing([StepTimes(None, 2.0, 1.0), StepTimes(None, 4.0, 1.0)])
    assert known.micro_step == known.last_micro_step
    assert known.global_step(1) == 4.0


def test_micro_steps_that_are_alike_are_all_samples_of_one():
    two = [StepTimes(1.0, 2.0, 0.5), StepTimes(3.0, 2.0, 0.5)]
    known = timing(two, alike=2)
    assert known.micro_step == known.last_micro_step == summarize([1.0, 2.0, 3.0, 2.0])
    assert known.global_step(3) == 6.5
    # Of more, the mean of each step: the last weighs as much as any other.
    many = timing([StepTimes(1.0, 4.0, 0.5), StepTimes(1.0, 1.0, 0.5)], alike=3)
    assert many.micro_step == many.last_micro_step == summarize([2.0, 1.0])
    assert timing([StepTimes(None, 2.0, 0.5)], alike=1).micro_step.mean == 2.0
    apart = timing(two)
    assert (apart.micro_step, apart.last_micro_step) == (summarize([1.0, 3.0]), summarize([2.0, 2.0]))


def test_narrow_is_judged_by_the_whole_global_step():
    # The optimizer's time varies by half; beside a thousand steady micro-steps that does not matter.
    samples = [StepTimes(1.0, 1.0, 0.5), StepTimes(1.0, 1.0, 1.0), StepTimes(1.0, 1.0, 1.5)]
    assert not narrow(samples, accumulation_steps=2)
    assert narrow(samples, accumulation_steps=1000)


@pytest.mark.parametrize(
    ("accumulation_steps", "seconds", "expected"),
    [(8, 1000.0, 8), (100, 33.0, 10), (100, 1.0, 2), (100, -5.0, 2), (1, 0.1, 1)],
)
def test_a_proof_cuts_global_steps_to_what_fits_three_times(accumulation_steps, seconds, expected):
    assert steps_that_fit(accumulation_steps, seconds, StepTimes(1.0, 1.0, 1.0)) == expected


@pytest.mark.parametrize(("steps", "apart"), [(12, 1), (25, 2), (1000, 64)])
def test_a_proof_keeps_the_times_of_steps_that_are_evenly_apart(steps, apart, monkeypatch):
    monkeypatch.setattr(prove, "SAMPLES_KEPT", 10)
    numbers = count()
    stepper = SimpleNamespace(
        training=SimpleNamespace(ranks=SimpleNamespace(largest=lambda _: stepper.taken >= steps)),
        taken=0,
    )

    def step(micro_steps):
        stepper.taken += 1
        return StepTimes(None, float(next(numbers)), 0.0)

    stepper.step = step
    kept = prove._train(stepper, 1, time.perf_counter())
    assert [times.last_micro_step for times in kept] == [float(number) for number in range(0, steps, apart)]
    assert stepper.taken == steps


def test_what_a_proof_keeps_of_its_steps_is_little_beside_how_far_peaks_lie_apart():
    # On the cpu device it is counted as the training's memory.
    times = StepTimes(*(math.pi + number for number in range(5)))
    assert not hasattr(times, "__dict__")
    one = sys.getsizeof(times) + 5 * sys.getsizeof(math.pi)
    assert 2 * SAMPLES_KEPT * one < CPU_NOISE / 8
