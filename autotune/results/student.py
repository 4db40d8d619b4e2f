"""Student's t distribution with any degrees of freedom and at any level, and the functions that estimate them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

TERMS = 500
"""Of a continued fraction, at most; it takes about as many as the square root of its parameters."""


def upper_tail(t: float, degrees: float) -> float:
    """Return the chance of a value above `t`: by the incomplete beta function (Abramowitz and Stegun, 26.7.1)."""
    if math.isinf(degrees):
        return math.erfc(t / math.sqrt(2)) / 2
    half = _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5) / 2
    return half if t >= 0 else 1 - half


def quantile(level: float, degrees: float) -> float:
    """Return the value that is exceeded with a chance of `level`, which is below one half."""
    assert 0 < level < 0.5
    assert degrees > 0
    high = 1.0
    while upper_tail(high, degrees) > level:
        high *= 2
    return _root(lambda t: level - upper_tail(t, degrees), 0.0, high)


def pooled(variances: Sequence[float], degrees: Sequence[float]) -> tuple[float, float]:
    """Return the variance that several have in common, and the degrees of freedom that this is worth to each.

    The scaled inverse chi-squared prior of Smyth (Linear models and empirical Bayes methods for assessing differential
    expression, 2004, section 6.2), fitted to the logarithms of the variances. The less these differ, beyond what few
    degrees of freedom explain, the more it is worth, up to all degrees together. Two variances above 0 at the least.
    """
    assert len(variances) == len(degrees) >= 2
    logs = [
        math.log(variance) - digamma(d / 2) + math.log(d / 2)
        for variance, d in zip(variances, degrees, strict=True)
    ]
    mean = math.fsum(logs) / len(logs)
    spread = math.fsum((one - mean) ** 2 for one in logs) / (len(logs) - 1)
    spread -= math.fsum(trigamma(d / 2) for d in degrees) / len(degrees)
    most = math.fsum(degrees)
    if spread <= trigamma(most / 2):
        return math.exp(mean), most
    # trigamma falls from infinity to 0
    half = _root(lambda value: spread - trigamma(value), 1e-4, most / 2)
    return math.exp(mean + digamma(half) - math.log(half)), 2 * half


def digamma(x: float) -> float:
    """Return the derivative of the logarithm of the gamma function (Abramowitz and Stegun, 6.3.5 and 6.3.18)."""
    assert x > 0
    below = 0.0
    while x < 10:
        below -= 1 / x
        x += 1
    square = 1 / (x * x)
    return below + math.log(x) - 0.5 / x - square * (1 / 12 - square * (1 / 120 - square / 252))


def trigamma(x: float) -> float:
    """Return its second derivative (Abramowitz and Stegun, 6.4.6 and 6.4.12)."""
    assert x > 0
    below = 0.0
    while x < 10:
        below += 1 / (x * x)
        x += 1
    square = 1 / (x * x)
    return below + 1 / x + square / 2 + square / x * (1 / 6 - square * (1 / 30 - square / 42))


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return where a rising function is 0, by bisection."""
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function (Abramowitz and Stegun, 26.5.8, by Lentz's method)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction converges fast for the complement
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    tiny = 1e-300
    value, c, d = 1.0, 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + term * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + term / c
            c = c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return front * value / a
