"""Corrections of predicted times by probes."""

import pytest

from autotune.outcome import Sample, StepTiming
from autotune.timing.calibration import SpeedCalibration, SpeedSample


def timing(micro, optimizer=1.0):
    step = Sample(mean=micro, half_width=None, count=0)
    return StepTiming(
        micro_step=step, last_micro_step=step, optimizer_step=Sample(mean=optimizer, half_width=None, count=0)
    )


def test_without_probes_the_prediction_stands_with_a_wide_interval():
    corrected = SpeedCalibration().correct("a", timing(2.0))
    assert corrected.micro_step.mean == 2.0
    assert 0.4 < corrected.micro_step.half_width / 2.0 < 0.9
    assert corrected.interval(1) > 0


def test_a_probe_corrects_its_rung_and_the_others():
    calibration = SpeedCalibration([SpeedSample("a", timing(1.0), timing(1.5, 0.5))])
    same, other = calibration.correct("a", timing(2.0)), calibration.correct("b", timing(2.0))
    assert same.micro_step.mean == pytest.approx(3.0, rel=0.03)
    assert same.last_micro_step.mean == same.micro_step.mean
    assert same.optimizer_step.mean == pytest.approx(0.5, rel=0.05)
    assert 2.6 < other.micro_step.mean < same.micro_step.mean
    assert (
        same.micro_step.half_width
        < other.micro_step.half_width
        < SpeedCalibration().correct("b", timing(2.0)).micro_step.half_width * 1.4
    )


def test_rungs_learn_factors_of_their_own():
    seen = [SpeedSample("a", timing(float(size)), timing(size * 1.2)) for size in (1, 2, 3)]
    seen += [SpeedSample("b", timing(float(size)), timing(size * 1.5)) for size in (1, 2, 3)]
    calibration = SpeedCalibration(seen)
    assert calibration.correct("a", timing(1.0)).micro_step.mean == pytest.approx(1.2, rel=0.03)
    assert calibration.correct("b", timing(1.0)).micro_step.mean == pytest.approx(1.5, rel=0.03)
    sample = calibration.correct("a", timing(1.0)).micro_step
    assert sample.half_width < 0.2
