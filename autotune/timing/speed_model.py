"""How far predicted step times are off, learnt from probes across candidates: a Gaussian process.

The logarithm of measured over predicted seconds is a sum of Gaussian parts around 0: one that all candidates share, one
for each value of each axis that is not its default (so what compiled blocks gain more than predicted, they gain under
any checkpointing), one that varies slowly with the micro-batch, and noise. Posterior: Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, algorithm 2.1. How large the parts of axes are is only assumed, so their scale is
learnt as well (`SCALES`): where a few candidates came out as predicted, others are trusted to, and are not probed for
what they might have been. `timing.calibration` corrects the parts of one step; this compares candidates, so what they
share cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

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
SCALES = (0.25, 0.5, 1.0, 2.0)
"""By what the standard deviations of axes (and OWN) may have to be multiplied: how well a device is predicted differs
more between devices than anybody knows beforehand. What is expected is the mean over all of these, weighted by how
likely each makes what was measured (Rasmussen and Williams, 5.2)."""
NEGLIGIBLE = 1e-3
"""Probability below which a scale is left out."""
FAR = 30.0
"""Standard deviations beyond which a Gaussian's tail is told by its expansion: 30 away both agree to 1%."""
DOUBT = 1.0
"""Standard deviation of the scale's logarithm before any probe: 1 is likeliest, 0.37 and 2.7 are as usual. Assumed."""


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

    logarithm: float
    variance: float


_NOTHING = _Residual(0.0, 1e9)
"""A measurement so unsure that it says nothing."""


class _Posterior(NamedTuple):
    """What is believed under one scale of the axes' parts."""

    factor: NDArray[numpy.floating[Any]]
    """Of the covariance of what was seen (Cholesky's, lower), of shape (seen, seen)."""
    solved: NDArray[numpy.floating[Any]]
    """The inverse of that covariance times the residuals, of shape (seen,)."""
    evidence: float
    """Logarithm of the density of the residuals, less what all scales have in common."""


class _Gaussian(NamedTuple):
    """Logarithms of measured over predicted seconds, of shape (candidates,)."""

    mean: NDArray[numpy.float64]
    variance: NDArray[numpy.float64]


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

    def __init__(
        self,
        seen: Sequence[Observed] = (),
        at_least: Sequence[AtLeast] = (),
        scales: Sequence[float] = SCALES,
    ) -> None:
        """Learn from probes. With one of `scales` alone, the spreads of axes are that multiple of what is assumed."""
        self._scales = scales
        measured = [one for one in seen if one.predicted > 0 and one.measured > 0]
        self._seen = [one.candidate for one in measured]
        residuals = [
            _Residual(math.log(one.measured / one.predicted), max(NOISE, one.spread) ** 2) for one in measured
        ]
        self._residuals = [list(residuals) for _ in self._scales]
        """By scale, of each that was seen."""
        self._condition()
        prior = [-((math.log(scale) / DOUBT) ** 2) / 2 for scale in self._scales]
        likely = [one.evidence for one in self._posteriors] or [0.0 for _ in self._scales]
        self._log_weights = [before + said for before, said in zip(prior, likely, strict=True)]
        """Logarithms of weights that the probabilities of the scales are proportional to."""
        for bound in at_least:
            self._cut(bound)

    @property
    def _probabilities(self) -> list[float]:
        """Of each scale; what is negligible is none."""
        weights = [math.exp(one - max(self._log_weights)) for one in self._log_weights]
        kept = [weight if weight >= NEGLIGIBLE * sum(weights) else 0.0 for weight in weights]
        return [weight / sum(kept) for weight in kept]

    def _condition(self) -> None:
        """Find the posterior under each scale."""
        self._posteriors: list[_Posterior] = []
        """One for each scale; empty where nothing was seen."""
        if not self._seen:
            return
        import numpy as np  # 0.1 s that `--help` does not wait for

        self._known = _Points(self._seen)
        covariance = self._known.covariance(self._known, same=True)
        for scale, residuals in zip(self._scales, self._residuals, strict=True):
            noise = np.diag([one.variance for one in residuals])
            factor = np.linalg.cholesky(covariance.at(scale) + noise)
            half = np.linalg.solve(factor, np.array([one.logarithm for one in residuals]))
            evidence = float(-half @ half / 2 - np.log(np.diag(factor)).sum())
            self._posteriors.append(_Posterior(factor, np.linalg.solve(factor.T, half), evidence))

    def _cut(self, bound: AtLeast) -> None:
        """Cut off what lies below a bound, under each scale."""
        least = math.log(bound.seconds / bound.predicted)
        beliefs = self._believed(_Points([bound.candidate]))
        cuts = [_cut_off(float(one.mean[0]), math.sqrt(one.variance[0]), least) for one in beliefs]
        for number, (residual, log_above) in enumerate(cuts):
            self._log_weights[number] += log_above
            self._residuals[number].append(residual)
        self._seen.append(bound.candidate)
        self._condition()

    def _believed(self, points: _Points) -> list[_Gaussian]:
        """Return what is believed of candidates under each scale."""
        import numpy as np

        prior = points.prior_variance()
        if not self._posteriors:
            return [_Gaussian(np.zeros_like(prior.common), prior.at(scale)) for scale in self._scales]
        covariance = self._known.covariance(points)
        found = []
        for scale, posterior in zip(self._scales, self._posteriors, strict=True):
            across = covariance.at(scale)
            half = np.linalg.solve(posterior.factor, across)
            variance = np.maximum(0.0, prior.at(scale) - (half**2).sum(axis=0))
            found.append(_Gaussian(across.T @ posterior.solved, variance))
        return found

    def expect(self, candidates: Sequence[Candidate], predicted: Sequence[float]) -> list[Expected]:
        """Return what probes of candidates would measure, whose predictions are so many seconds."""
        if not candidates:
            return []
        import numpy as np

        places = {one: place for place, one in enumerate(dict.fromkeys(candidates))}
        beliefs = self._believed(_Points(tuple(places)))
        mean, square = np.zeros(len(places)), np.zeros(len(places))
        for probability, one in zip(self._probabilities, beliefs, strict=True):
            mean += probability * one.mean
            square += probability * (one.variance + one.mean**2)
        spread = np.sqrt(np.maximum(0.0, square - mean**2))
        found = [(math.exp(by), rest) for by, rest in zip(mean.tolist(), spread.tolist(), strict=True)]
        each = (found[places[one]] for one in candidates)
        return [
            Expected(seconds * factor, spread)
            for seconds, (factor, spread) in zip(predicted, each, strict=True)
        ]


def _cut_off(mean: float, spread: float, least: float) -> tuple[_Residual, float]:
    """Return the measurement that would tell of a Gaussian what cutting off all below `least` does.

    With it comes the logarithm of the probability that it had of being above.
    """
    if spread == 0:
        return _NOTHING, 0.0
    at = (least - mean) / spread
    if at < -3:
        return _NOTHING, 0.0
    # Mean and variance of what is left of a standard Gaussian, and the logarithm of how much that is.
    if at < FAR:
        above = math.erfc(at / math.sqrt(2)) / 2
        shift = math.exp(-at * at / 2) / math.sqrt(2 * math.pi) / above
        left, log_above = 1 - shift * (shift - at), math.log(above)
    else:  # the first terms of their expansions, where `erfc` comes to 0
        shift, left = at + 1 / at, 1 / at**2
        log_above = -at * at / 2 - math.log(at * math.sqrt(2 * math.pi))
    precision = (1 / left - 1) / spread**2
    if precision <= 0:
        return _NOTHING, log_above
    logarithm = ((mean + spread * shift) / (left * spread**2) - mean / spread**2) / precision
    return _Residual(logarithm, 1 / precision), log_above


class _Parts(NamedTuple):
    """Variances or covariances, of which the part that comes of axes has a scale."""

    common: NDArray[numpy.float64]
    axes: NDArray[numpy.float64]

    def at(self, scale: float) -> NDArray[numpy.float64]:
        """Return their sum under a scale."""
        result: NDArray[numpy.float64] = self.common + scale**2 * self.axes
        return result


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

    def covariance(self, other: _Points, same: bool = False) -> _Parts:
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
        return _Parts(by_size[sizes], by_axes[rungs] + OWN**2 * own)

    def prior_variance(self) -> _Parts:
        """Return the variance of each before any probe."""
        import numpy as np

        spreads = np.array([spread**2 for spread in _SPREADS])
        by_axes = (self.axes != 0) @ spreads
        return _Parts(np.full(len(self.rung), SHARED**2 + SIZE**2), by_axes[self.rung] + OWN**2)


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
