"""How long to measure: until the confidence interval of a global step's time is narrow enough."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from autotune.outcome import Sample, StepTiming
from autotune.train.steps import Parts

ENOUGH = 0.03
"""Half-width of the 95% interval, as a share of the mean, at which sampling stops."""

_STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95% quantiles of Student's t for 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook,
1.3.6.7.2).
"""


def summarize(values: Sequence[float]) -> Sample:
    """Return the mean and its 95% interval. More than 31 values get the quantile of 31, which is slightly too
    wide.
    """
    count = len(values)
    if count < 2:
        return Sample(mean=statistics.fmean(values), half_width=None, count=count)
    quantile = _STUDENT_T[min(count - 1, len(_STUDENT_T)) - 1]
    half_width = quantile * statistics.stdev(values) / math.sqrt(count)
    return Sample(mean=statistics.fmean(values), half_width=half_width, count=count)


def timing(samples: Sequence[Parts]) -> StepTiming:
    """Return the parts of a global step from repeated measurements, all of the same number of micro-steps.

    Where the last micro-step is the only one, it stands for the others too.
    """
    last = summarize([parts.last_micro_step for parts in samples])
    others = [parts.micro_steps for parts in samples if parts.micro_steps is not None]
    return StepTiming(
        micro_step=summarize(others) if others else last,
        last_micro_step=last,
        optimizer_step=summarize([parts.optimizer_step for parts in samples]),
        data_wait=summarize([parts.data_wait for parts in samples]),
    )


def narrow(samples: Sequence[Parts], accumulation_steps: int) -> bool:
    """Return whether the time of a whole global step is known well enough."""
    if len(samples) < 2:
        return False
    known = timing(samples)
    return known.interval(accumulation_steps) <= ENOUGH * known.global_step(accumulation_steps)
