"""How far predicted step times are off, learnt from probes across candidates: a Gaussian process.

The logarithm of measured over predicted seconds is a sum of Gaussian parts around 0: one that all candidates share, one
for each value of each axis that is not its default (so what compiled blocks gain more than predicted, they gain under
any checkpointing), one that varies slowly with the micro-batch, and noise. Posterior: Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, algorithm 2.1. `timing.calibration` corrects the parts of one step; this compares
candidates, so what they share cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from autotune.candidate import AXES, Candidate

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

SHARED = 0.3
"""Standard deviation of the logarithm that all candidates share: as large as the roofline's error on published runs
(benchmarks/results/step_time.json)."""
SIZE = 0.08
"""Of the part that varies with the micro-batch: kernels are more efficient on larger matrices. Assumed."""
OCTAVES = 1.5
"""Doublings of the micro-batch over which that part keeps most of its value. Assumed."""
OWN = 0.02
"""Of what is a candidate's own: techniques do not combine exactly. Assumed."""
NOISE = 0.02
"""Of a measurement, at the least: drift between measurements on a quiet machine (`search.drift.FLOOR`)."""
AXIS: dict[str, float] = {
    "precision": 0.15, "attention": 0.15, "compile": 0.2, "kernels": 0.15, "loss": 0.08, "activation_offload": 0.2,
    "offload": 0.3, "offload_to": 0.3, "sharding": 0.2, "engine": 0.2, "tensor_parallel": 0.2, "checkpointing": 0.05,
    "checkpointed_blocks": 0.0,
}  # fmt: skip
"""Of the part of an axis whose value is not the default. Assumed: large where a link, disk or compiler decides, that
the roofline knows least of; small for recomputation, which repeats what was counted already; none for the number of
blocks that are computed again, which lies between none and all."""
OTHER_AXIS = 0.05
"""The same for the axes that are not named: they change a small part of a step."""


class Observed(NamedTuple):
    """What a probe of a candidate took, in seconds of a global step."""

    candidate: Candidate
    predicted: float
    measured: float
    spread: float
    """Standard deviation of the logarithm of `measured`."""


class AtLeast(NamedTuple):
    """What a probe of a candidate surely took at least, in seconds of a global step, and what was predicted."""

    candidate: Candidate
    predicted: float
    seconds: float


class _Residual(NamedTuple):
    """The logarithm of measured over predicted seconds, with its variance."""

    candidate: Candidate
    logarithm: float
    variance: float


class Expected(NamedTuple):
    """What a probe would measure: the logarithm of its seconds is Gaussian."""

    seconds: float
    """Median."""
    spread: float
    """Standard deviation of the logarithm."""

    def improvement(self, best: float) -> float:
        """Return by what share of `best` (seconds) a probe is expected to be below it; 0 counts where it is not.

        This is expected improvement (Jones, Schonlau and Welch 1998) on the logarithm of seconds.
        """
        ahead = math.log(best / self.seconds)
        if self.spread == 0:
            return max(0.0, ahead)
        z = ahead / self.spread
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return ahead * (1 + math.erf(z / math.sqrt(2))) / 2 + self.spread * density


class SpeedModel:
    """The posterior given some probes, and given some that only took at least so long. Immutable.

    What took at least so long is no measurement: of what is believed of it, the part below is cut off, and what is
    left is taken to be Gaussian, one by one (assumed-density filtering: Minka, A Family of Algorithms for Approximate
    Bayesian Inference, 2001, chapter 3). Where it was expected to take longer anyway, that changes next to nothing.
    """

    def __init__(self, seen: Sequence[Observed] = (), at_least: Sequence[AtLeast] = ()) -> None:
        self._seen = [
            _Residual(one.candidate, math.log(one.measured / one.predicted), max(NOISE, one.spread) ** 2)
            for one in seen
            if one.predicted > 0 and one.measured > 0
        ]
        self._condition()
        for bound in at_least:
            (expected,) = self.expect([bound.candidate], [bound.predicted])
            cut = _cut_off(math.log(expected.seconds / bound.predicted), expected.spread, bound)
            if cut is not None:
                self._seen.append(cut)
                self._condition()

    def _condition(self) -> None:
        if not self._seen:
            return
        import numpy as np  # 0.1 s that `--help` does not wait for

        known = _Points([one.candidate for one in self._seen])
        covariance = known.covariance(known, same=True) + np.diag([one.variance for one in self._seen])
        residuals = np.array([one.logarithm for one in self._seen])
        self._known = known
        self._factor = np.linalg.cholesky(covariance)
        self._weights = np.linalg.solve(self._factor.T, np.linalg.solve(self._factor, residuals))

    def expect(self, candidates: Sequence[Candidate], predicted: Sequence[float]) -> list[Expected]:
        """Return what probes of candidates would measure, whose predictions are so many seconds."""
        if not candidates:
            return []
        import numpy as np

        places = {one: place for place, one in enumerate(dict.fromkeys(candidates))}
        points = _Points(tuple(places))
        variance = points.prior_variance()
        shift = np.zeros(len(places))
        if self._seen:
            across = self._known.covariance(points)
            shift = across.T @ self._weights
            half = np.linalg.solve(self._factor, across)
            variance = np.maximum(0.0, variance - (half**2).sum(axis=0))
        found = [
            (math.exp(by), math.sqrt(rest))
            for by, rest in zip(shift.tolist(), variance.tolist(), strict=True)
        ]
        each = (found[places[one]] for one in candidates)
        return [
            Expected(seconds * factor, spread)
            for seconds, (factor, spread) in zip(predicted, each, strict=True)
        ]


def _cut_off(mean: float, spread: float, bound: AtLeast) -> _Residual | None:
    """Return the measurement that would tell of a Gaussian what cutting off all below a bound does; None if nothing."""
    if spread == 0:
        return None
    at = (math.log(bound.seconds / bound.predicted) - mean) / spread
    if at < -3:
        return None
    above = math.erfc(at / math.sqrt(2)) / 2
    # Mean of what is left of a standard Gaussian; far out the ratio has no digits left, and this is its limit.
    shift = math.exp(-at * at / 2) / math.sqrt(2 * math.pi) / above if at < 8 else at + 1 / at
    left = max(1e-3, 1 - shift * (shift - at))
    precision = (1 / left - 1) / spread**2
    if precision <= 0:
        return None
    logarithm = ((mean + spread * shift) / (left * spread**2) - mean / spread**2) / precision
    return _Residual(bound.candidate, logarithm, 1 / precision)


class _Points:
    """Candidates by their rungs and micro-batches, each once: many candidates share few of either."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        import numpy as np

        rungs, sizes = [_rung_values(one) for one in candidates], [one.micro_batch for one in candidates]
        places = {rung: place for place, rung in enumerate(dict.fromkeys(rungs))}
        self.rung: NDArray[numpy.int64] = np.array([places[rung] for rung in rungs])
        """Row in `axes` of each candidate."""
        self.axes: NDArray[numpy.int64] = np.array([_encoded(rung) for rung in places])
        """The value of each axis by its place among the values met, 0 for the default."""
        octaves, self.size = np.unique(np.log2(np.array(sizes, dtype=np.float64)), return_inverse=True)
        self.octaves: NDArray[numpy.float64] = octaves

    def covariance(self, other: _Points, same: bool = False) -> NDArray[numpy.float64]:
        """Return the covariance of these (rows) with others (columns); `same` says that they are these themselves."""
        import numpy as np

        apart = self.octaves[:, None] - other.octaves[None, :]
        by_size = SHARED**2 + SIZE**2 * np.exp(-(apart**2) / (2 * OCTAVES**2))
        by_axes = np.zeros((len(self.axes), len(other.axes)))
        equal = np.ones(by_axes.shape, dtype=bool)
        for column, spread in enumerate(_SPREADS):
            mine, others = self.axes[:, column, None], other.axes[None, :, column]
            if mine.any() or others.any():
                alike = mine == others
                equal &= alike
                by_axes += spread**2 * (alike & (mine != 0))
        sizes, rungs = np.ix_(self.size, other.size), np.ix_(self.rung, other.rung)
        own = np.eye(len(self.rung)) if same else equal[rungs] & (apart == 0)[sizes]
        result: NDArray[numpy.float64] = by_size[sizes] + by_axes[rungs] + OWN**2 * own
        return result

    def prior_variance(self) -> NDArray[numpy.float64]:
        """Return the variance of each before any probe."""
        import numpy as np

        spreads = np.array([spread**2 for spread in _SPREADS])
        by_axes: NDArray[numpy.float64] = (self.axes != 0) @ spreads
        return by_axes[self.rung] + SHARED**2 + SIZE**2 + OWN**2


_SPREADS = tuple(AXIS.get(axis, OTHER_AXIS) for axis in AXES)
_rung_values: Callable[[Candidate], tuple[object, ...]] = attrgetter(*AXES)
_DEFAULTS = _rung_values(Candidate())
_CODES: dict[tuple[str, object], int] = {}


def _encoded(rung: tuple[object, ...]) -> list[int]:
    """Return a number for the value of each axis, 0 for its default, the same for equal values."""
    return [
        0 if value == default else _CODES.setdefault((axis, value), len(_CODES) + 1)
        for axis, value, default in zip(AXES, rung, _DEFAULTS, strict=True)
    ]
