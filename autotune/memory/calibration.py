"""Correct predictions by what probes measured: an offset and a slope for all rungs, and small ones for each.

The model is `measured = (1 + s + s_rung) x raw + o + o_rung + noise`, every term Gaussian around 0, so that with no
probe a prediction is what the raw model says, with one probe all rungs learn its offset, and with several on a rung
that rung gets a slope of its own. The posterior is that of Bayesian linear regression (Rasmussen and Williams 2006,
section 2.1.1). A probe says nothing of another rung's own terms but through what all share, so these are integrated out
rung by rung, and everything is solved in matrices of two rows: n probes of r rungs take n + r steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

from autotune.units import MIB

Z = 1.96
"""Half-width of a 95% interval in standard deviations of a Gaussian."""
_STANDARD = NormalDist()


@dataclass(frozen=True)
class Prior:
    """Standard deviations, before any probe, of what a raw prediction gets wrong.

    In bytes, and their defaults are of memory; or in whatever else is predicted (`timing/calibration`: logarithms).
    """

    offset: float
    """Outside the tensors that are not known beforehand (context, libraries' buffers)."""
    slope: float = 0.02
    """Share of the raw prediction: kernels' scratch, fragmentation."""
    rung_offset: float = 24 * MIB
    """What a rung adds to `offset`."""
    rung_slope: float = 0.02
    """What a rung adds to `slope`."""
    noise: float = 0.003
    """Share of the raw prediction by which one probe differs from the next."""
    noise_floor: float = 4 * MIB
    """The least by which it does."""


class Observation(NamedTuple):
    """A probe's raw prediction and its measurement."""

    rung: str
    raw: float
    measured: float


class Corrected(NamedTuple):
    """A corrected prediction and its 95% interval, which may reach below 0."""

    mean: float
    low: float
    high: float

    def probability_within(self, limit: float) -> float:
        """Return how probable it is that a probe measures at most so many bytes."""
        deviation = (self.high - self.mean) / Z
        if deviation <= 0:
            return float(self.mean <= limit)
        return _STANDARD.cdf((limit - self.mean) / deviation)


class _Line(NamedTuple):
    """How the correction of a rung depends on a raw prediction."""

    shift: tuple[float, float]
    """Of the mean: bytes, and a share of the raw prediction."""
    variance: tuple[float, float, float]
    """A quadratic in the raw prediction, with the noise of the next probe."""


class _Sums(NamedTuple):
    """Weighted sums over probes, which are all that they say of an offset and a slope.

    Each probe has the inverse of its variance as its weight; `raw` is its raw prediction, and `beyond` what it measured
    beyond that.
    """

    weights: float = 0.0
    raw: float = 0.0
    raw_squared: float = 0.0
    beyond: float = 0.0
    raw_beyond: float = 0.0

    def also(self, observation: Observation, noise: float) -> _Sums:
        """Return the sums with one more probe, whose variance is `noise`."""
        weight = 1 / noise
        by_raw = weight * observation.raw
        beyond = observation.measured - observation.raw
        return _Sums(
            self.weights + weight, self.raw + by_raw, self.raw_squared + by_raw * observation.raw,
            self.beyond + weight * beyond, self.raw_beyond + by_raw * beyond,
        )  # fmt: skip

    def plus(self, other: _Sums) -> _Sums:
        """Return the sums over the probes of both."""
        return _Sums(*(one + more for one, more in zip(self, other, strict=True)))

    def posterior(self, offset: float, slope: float) -> _Posterior:
        """Return what follows of an offset and a slope whose variances before these probes are given."""
        grown = self.weights * self.raw_squared - self.raw * self.raw
        scale = 1 + self.weights * offset + self.raw_squared * slope + offset * slope * grown
        left = (
            (1 + self.raw_squared * slope) / scale, -self.raw * offset / scale,
            -self.raw * slope / scale, (1 + self.weights * offset) / scale,
        )  # fmt: skip
        covariance = (left[0] * offset, left[1] * slope, left[3] * slope)
        marginal = _Sums(
            (self.weights + slope * grown) / scale, self.raw / scale, (self.raw_squared + offset * grown) / scale,
            left[0] * self.beyond + left[2] * self.raw_beyond, left[1] * self.beyond + left[3] * self.raw_beyond,
        )  # fmt: skip
        return _Posterior(left, covariance, marginal)


class _Posterior(NamedTuple):
    """What probes leave of two terms, an offset and a slope."""

    left: tuple[float, float, float, float]
    """The matrix (I + variances x information)^-1, row by row: what remains of an error in other terms of the same
    probes beside these two, which take up the rest."""
    covariance: tuple[float, float, float]
    """Variance of the offset, covariance, variance of the slope."""
    marginal: _Sums
    """What the probes say of other terms, with these two integrated out."""


class Calibration:
    """The posterior given some probes. Immutable but for what it remembers."""

    def __init__(
        self,
        prior: Prior,
        observations: Sequence[Observation] = (),
        known: Mapping[str, _Sums] | None = None,
        counted: int = 0,
    ) -> None:
        """`known` has by rung what the first `counted` observations say."""
        self.prior = prior
        self.observations = tuple(observations)
        self._known = dict(known or {})
        for new in self.observations[counted:]:
            before = self._known.get(new.rung, _Sums())
            self._known[new.rung] = before.also(new, self._noise(new.raw))
        shared = _Sums()
        for one in self._known.values():
            shared = shared.plus(self._own(one).marginal)
        posterior = shared.posterior(prior.offset**2, prior.slope**2)
        self._covariance = offset, both, slope = posterior.covariance
        self._mean = (
            offset * shared.beyond + both * shared.raw_beyond,
            both * shared.beyond + slope * shared.raw_beyond,
        )
        self._lines: dict[str | None, _Line] = {}

    def also(self, observation: Observation) -> Calibration:
        """Return the posterior given one more probe."""
        seen = (*self.observations, observation)
        return Calibration(self.prior, seen, self._known, len(self.observations))

    def correct(self, rung: str, raw: float) -> Corrected:
        """Return what a probe of this rung would measure, whose raw prediction is `raw` bytes."""
        (shift, by_raw), (variance, linear, square) = self._line(rung if rung in self._known else None)
        shift += raw * by_raw
        variance += raw * (linear + raw * square)
        spread = Z * math.sqrt(max(0.0, variance))
        return Corrected(raw + shift, raw + shift - spread, raw + shift + spread)

    def _line(self, rung: str | None) -> _Line:
        """Return what the observations say of a rung, None standing for all that were not probed; computed once."""
        if rung not in self._lines:
            known = self._known[rung] if rung is not None else _Sums()
            # A rung's terms are those that all share and its own, which its probes tell from what they leave of these.
            (a, b, c, d), own, _ = self._own(known)
            offset, both, slope = self._covariance
            shift, tilt = self._mean
            top = a * offset + b * both, a * both + b * slope
            bottom = c * offset + d * both, c * both + d * slope
            mean = (
                a * shift + b * tilt + own[0] * known.beyond + own[1] * known.raw_beyond,
                c * shift + d * tilt + own[1] * known.beyond + own[2] * known.raw_beyond,
            )
            variance = (
                own[0] + top[0] * a + top[1] * b + self.prior.noise_floor**2,
                2 * (own[1] + top[0] * c + top[1] * d),
                own[2] + bottom[0] * c + bottom[1] * d + self.prior.noise**2,
            )
            self._lines[rung] = _Line(mean, variance)
        return self._lines[rung]

    def _own(self, known: _Sums) -> _Posterior:
        """Return what the probes of a rung leave of its own terms."""
        return known.posterior(self.prior.rung_offset**2, self.prior.rung_slope**2)

    def _noise(self, raw: float) -> float:
        return (self.prior.noise * raw) ** 2 + self.prior.noise_floor**2
