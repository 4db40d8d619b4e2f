"""From repeated measurements to one number with its interval. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from autotune.confidence import t_quantile
from autotune.outcome import Sample

TRIMMED = 0.2
"""Share of the fastest and of the slowest repetitions that a mean leaves out (the usual one: Wilcox, Introduction to
Robust Estimation and Hypothesis Testing, 3.3.3), where all do the same work: what slows fewer than one step in five is
somebody else's. benchmarks/repeatability.py compares it with the plain mean and the median."""


def summarize(values: Sequence[float], trimmed: float = 0.0) -> Sample:
    """Return the mean without the `trimmed` share at either end, and its 95% interval.

    The interval is Student's, of the winsorized deviation (Tukey and McLaughlin, 1963); fewer than 1 / `trimmed` values
    are not trimmed, which leaves the plain mean and its interval.
    """
    count = len(values)
    if count < 2:
        return Sample(mean=statistics.fmean(values), half_width=None, count=count)
    out = int(trimmed * count)
    kept = sorted(values)[out : count - out]
    winsorized = [*[kept[0]] * out, *kept, *[kept[-1]] * out]
    error = statistics.stdev(winsorized) / ((1 - 2 * out / count) * math.sqrt(count))
    return Sample(mean=statistics.fmean(kept), half_width=t_quantile(len(kept) - 1) * error, count=count)
