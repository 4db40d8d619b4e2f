"""Correct predicted step times by what probes measured: a factor for all rungs, and a small one for each.

The logarithm of measured over predicted is Gaussian around 0 before any probe, with a part that all rungs share; its
posterior is the memory model's (`autotune.memory.calibration`). Forward and backward have one factor, the optimizer
step, which moves memory and computes little, another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from autotune.memory.calibration import Calibration, Observation, Prior
from autotune.outcome import Sample, StepTiming

PRIOR = Prior(offset=0.3, slope=0.0, rung_offset=0.1, rung_slope=0.0, noise=0.0, noise_floor=0.05)
"""Standard deviations of the logarithm: of what all rungs share, as large as the roofline's error on published runs
(benchmarks/results/step_time.json); of what a rung has for itself and one probe for itself, assumed."""

_Part = Literal["micro_step", "last_micro_step", "optimizer_step"]


class SpeedSample(NamedTuple):
    """A probe's predicted timing, and what it measured."""

    rung: str
    predicted: StepTiming
    measured: StepTiming


class SpeedCalibration:
    """The posterior given some probes. Immutable."""

    def __init__(self, seen: Sequence[SpeedSample] = ()) -> None:
        self._micro = _calibration(seen, "last_micro_step")
        self._optimizer = _calibration(seen, "optimizer_step")

    def correct(self, rung: str, predicted: StepTiming) -> StepTiming:
        """Return what a probe of this rung would measure, with the half-widths of 95% intervals."""
        return StepTiming(
            micro_step=_corrected(self._micro, rung, predicted.micro_step),
            last_micro_step=_corrected(self._micro, rung, predicted.last_micro_step),
            optimizer_step=_corrected(self._optimizer, rung, predicted.optimizer_step),
        )


def _calibration(seen: Sequence[SpeedSample], part: _Part) -> Calibration:
    observations = []
    for probe in seen:
        predicted, measured = getattr(probe.predicted, part).mean, getattr(probe.measured, part).mean
        if predicted > 0 and measured > 0:
            observations.append(Observation(probe.rung, 0.0, math.log(measured / predicted)))
    return Calibration(PRIOR, observations)


def _corrected(calibration: Calibration, rung: str, sample: Sample) -> Sample:
    logarithm = calibration.correct(rung, 0.0)
    low, high = math.exp(logarithm.low), math.exp(logarithm.high)
    return Sample(
        mean=sample.mean * math.exp(logarithm.mean), half_width=sample.mean * (high - low) / 2, count=0
    )
