"""A variance that several groups share, and the t test with it. Pure.

After Smyth, Linear models and empirical Bayes methods for assessing differential expression (2004). scipy, which has
the distributions, is imported when the first of them is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def upper_tail(t: float, degrees: float) -> float:
    """Return the chance of a value above `t` by Student's t with so many degrees of freedom, which are finite."""
    from scipy.special import stdtr

    return float(stdtr(degrees, -t))


def quantile(level: float, degrees: float) -> float:
    """Return the value that is exceeded with a chance of `level`, which is below one half."""
    from scipy.special import stdtrit

    assert 0 < level < 0.5
    assert degrees > 0
    return -float(stdtrit(degrees, level))


def pooled(variances: Sequence[float], degrees: Sequence[float]) -> tuple[float, float]:
    """Return the variance that several have in common, and the degrees of freedom that this is worth to each.

    The scaled inverse chi-squared prior of section 6.2, fitted to the logarithms of the variances. The less these
    differ, beyond what few degrees of freedom explain, the more it is worth, up to all degrees together. Two variances
    above 0 at the least.
    """
    from scipy.special import polygamma, psi

    assert len(variances) == len(degrees) >= 2
    logs = [
        math.log(variance) - float(psi(d / 2)) + math.log(d / 2)
        for variance, d in zip(variances, degrees, strict=True)
    ]
    mean = math.fsum(logs) / len(logs)
    spread = math.fsum((one - mean) ** 2 for one in logs) / (len(logs) - 1)
    spread -= math.fsum(float(polygamma(1, d / 2)) for d in degrees) / len(degrees)
    most = math.fsum(degrees)
    if spread <= float(polygamma(1, most / 2)):
        return math.exp(mean), most
    half = _inverse_trigamma(spread)
    return math.exp(mean + float(psi(half)) - math.log(half)), 2 * half


def _inverse_trigamma(value: float) -> float:
    """Return where the trigamma function is `value`, which is above 0.

    By Newton's method, which converges from this start because 1 / trigamma is convex and nearly linear (the paper's
    appendix).
    """
    from scipy.special import polygamma

    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if -step <= 1e-12 * x:
            break
    return x
