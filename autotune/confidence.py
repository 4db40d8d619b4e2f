"""Confidence intervals from few repetitions: quantiles of Student's t distribution."""

from __future__ import annotations

_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95% quantiles for 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2)."""


def t_quantile(degrees: int) -> float:
    """Return the two-sided 95% quantile; above 30 degrees of freedom that of 30, which is slightly too wide."""
    assert degrees >= 1
    return _T[min(degrees, len(_T)) - 1]
