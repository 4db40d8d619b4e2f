"""Correct predictions by what probes measured: an offset and a slope for all rungs, and small ones for each.

The model is `measured = (1 + s + s_rung) x raw + o + o_rung + noise`, every term Gaussian around 0, so that with no
probe a prediction is what the raw model says, with one probe all rungs learn its offset, and with several on a rung
that rung gets a slope of its own. The posterior is that of a Gaussian process with this linear kernel (Rasmussen and
Williams 2006, section 2.1 and algorithm 2.1); there are never more than some tens of probes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple

from autotune.units import MIB

Z = 1.96
"""Half-width of a 95% interval in standard deviations of a Gaussian."""


@dataclass(frozen=True)
class Prior:
    """Standard deviations, before any probe, of what a raw prediction gets wrong."""

    offset: float
    """Bytes outside the tensors that are not known beforehand (context, libraries' buffers)."""
    slope: float = 0.02
    """Share of the raw prediction: kernels' scratch, fragmentation."""
    rung_offset: float = 24 * MIB
    rung_slope: float = 0.02
    noise: float = 0.003
    """Share of the raw prediction by which one probe differs from the next."""
    noise_floor: float = 4 * MIB


class Observation(NamedTuple):
    """A probe's raw prediction and its measurement, in bytes."""

    rung: str
    raw: float
    measured: float


class Corrected(NamedTuple):
    """A corrected prediction and its 95% interval, in bytes; it may reach below 0."""

    mean: float
    low: float
    high: float


class _Line(NamedTuple):
    """How the correction of a rung depends on a raw prediction."""

    shift: tuple[float, float]
    """Of the mean: bytes, and a share of the raw prediction."""
    variance: tuple[float, float, float]
    """A quadratic in the raw prediction."""


class Calibration:
    """The posterior given some probes. Immutable but for what it remembers."""

    def __init__(
        self, prior: Prior, observations: Sequence[Observation] = (), factor: Sequence[list[float]] = ()
    ) -> None:
        """`factor` has the rows of the Cholesky factor that are known already, of the first observations."""
        self.prior = prior
        self.observations = tuple(observations)
        self._factor = list(factor)
        for index in range(len(self._factor), len(self.observations)):
            new = self.observations[index]
            row = _forward(
                self._factor, [self._covariance(new, before) for before in self.observations[:index]]
            )
            own = self._covariance(new, new) + self._noise(new.raw)
            self._factor.append([*row, math.sqrt(own - sum(map(mul, row, row)))])
        residuals = [observation.measured - observation.raw for observation in self.observations]
        self._weights = _solve(self._factor, residuals)
        self._observed = frozenset(observation.rung for observation in self.observations)
        self._lines: dict[str | None, _Line] = {}

    def also(self, observation: Observation) -> Calibration:
        """Return the posterior given one more probe."""
        return Calibration(self.prior, (*self.observations, observation), self._factor)

    def correct(self, rung: str, raw: float) -> Corrected:
        """Return what a probe of this rung would measure, whose raw prediction is `raw` bytes."""
        (shift, by_raw), (variance, linear, square) = self._line(rung if rung in self._observed else None)
        shift += raw * by_raw
        variance += raw * (linear + raw * square)
        spread = Z * math.sqrt(max(0.0, variance))
        return Corrected(raw + shift, raw + shift - spread, raw + shift + spread)

    def _line(self, rung: str | None) -> _Line:
        """Return what the observations say of a rung, None standing for all that were not probed; computed once."""
        if rung not in self._lines:
            prior = self.prior
            own = [observation.rung == rung for observation in self.observations]
            # The covariance of `raw` with each observation is a line: offset + slope x raw.
            offsets = [prior.offset**2 + prior.rung_offset**2 * mine for mine in own]
            slopes = [
                (prior.slope**2 + prior.rung_slope**2 * mine) * observation.raw
                for mine, observation in zip(own, self.observations, strict=True)
            ]
            low, high = _forward(self._factor, offsets), _forward(self._factor, slopes)
            # Before any probe, with the noise of the next; less what the observations tell.
            fixed = prior.offset**2 + prior.rung_offset**2 + prior.noise_floor**2
            square = prior.slope**2 + prior.rung_slope**2 + prior.noise**2
            self._lines[rung] = _Line(
                (_dot(offsets, self._weights), _dot(slopes, self._weights)),
                (fixed - _dot(low, low), -2 * _dot(low, high), square - _dot(high, high)),
            )
        return self._lines[rung]

    def _covariance(self, a: Observation, b: Observation) -> float:
        prior = self.prior
        value = prior.offset**2 + prior.slope**2 * a.raw * b.raw
        if a.rung == b.rung:
            value += prior.rung_offset**2 + prior.rung_slope**2 * a.raw * b.raw
        return value

    def _noise(self, raw: float) -> float:
        return (self.prior.noise * raw) ** 2 + self.prior.noise_floor**2


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def _forward(lower: Sequence[list[float]], values: Sequence[float]) -> list[float]:
    """Solve L x = values, where a row of L ends with its diagonal."""
    result: list[float] = []
    for row, value in zip(lower, values, strict=True):
        result.append((value - sum(map(mul, row, result))) / row[len(result)])
    return result


def _solve(lower: list[list[float]], values: Sequence[float]) -> list[float]:
    """Solve L L^T x = values."""
    result = _forward(lower, values)
    for row in range(len(lower) - 1, -1, -1):
        rest = result[row] - sum(lower[k][row] * result[k] for k in range(row + 1, len(lower)))
        result[row] = rest / lower[row][row]
    return result
