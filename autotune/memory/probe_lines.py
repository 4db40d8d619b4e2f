"""Predict without a trace: by probes alone, of which each rung's peak is a line in the micro-batch, with an interval.

For a training that autotune does not build, such as a command of the user's own. Pure: what is known follows from the
history. Nothing is known of a rung before its first probe that fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autotune.candidate import Candidate
from autotune.memory.calibration import Corrected, Z
from autotune.memory.device_overhead import DeviceOverhead
from autotune.memory.predictor import Predictor
from autotune.outcome import Breakdown, Memory, Ok, Oom, Phase
from autotune.prediction import Prediction
from autotune.trial import History
from autotune.units import MIB

NOISE = 0.005
"""Share of a peak by which one probe differs from the next of the same candidate. Assumed, twice what probes of models
show: a command's data differ from step to step."""
NOISE_FLOOR = 4 * MIB
"""Bytes of it, at least."""


@dataclass(frozen=True)
class _Rung:
    """What the probes of one rung showed, in bytes by micro-batch."""

    points: tuple[tuple[int, float], ...]
    """Peaks of those that fitted, then the budget for those that ran out of memory although a line said less."""
    fitted: int
    """How many of the points fitted."""
    last: Memory
    """Of the largest micro-batch that fitted."""
    out_in: Phase
    """Where it ran out of memory, as far as it did; else in forward, where activations grow."""

    def bounds(self, micro_batch: int) -> Corrected:
        """Return the peak at a micro-batch with its 95% interval.

        Of two micro-batches or more: least squares, with the textbook's interval of a new observation, whose noise is
        no less than assumed. Of one alone: what the process holds beside its tensors does not grow, and no tensor grows
        by more than in proportion (or shrinks), so the peak is between itself and that.
        """
        sizes = [size for size, _ in self.points]
        count, mean = len(sizes), math.fsum(sizes) / len(sizes)
        average = math.fsum(peak for _, peak in self.points) / count
        spread = math.fsum((size - mean) ** 2 for size in sizes)
        noise = max(NOISE_FLOOR, NOISE * average)
        if spread == 0:
            beside = max(0.0, average - self.last.allocated)
            proportional = beside + (average - beside) * micro_batch / mean
            low, high = sorted((average, proportional))
            return Corrected((low + high) / 2, low - Z * noise, high + Z * noise)
        slope = math.fsum((size - mean) * (peak - average) for size, peak in self.points) / spread
        slope = max(0.0, slope)  # more samples never take less: below that is noise
        if count > 2:
            left = math.fsum((peak - average - slope * (size - mean)) ** 2 for size, peak in self.points)
            noise = max(noise, math.sqrt(left / (count - 2)))
        middle = average + slope * (micro_batch - mean)
        width = Z * noise * math.sqrt(1 + 1 / count + (micro_batch - mean) ** 2 / spread)
        return Corrected(middle, middle - width, middle + width)


class ProbeLines(Predictor):
    """The memory model of a training that cannot be traced, with a predictor's answers."""

    def __init__(self, rungs: dict[Candidate, _Rung] | None = None) -> None:
        super().__init__({}, DeviceOverhead("cpu", 0, 0))
        self._rungs = rungs or {}

    def calibrated(self, history: History, budget: int) -> ProbeLines:
        """Return what the probes of a history show, and no others."""
        found: dict[Candidate, _Rung] = {}
        for rung in dict.fromkeys(trial.candidate.rung() for trial in history):
            own = [trial for trial in history if trial.candidate.rung() == rung]
            fitting = [
                (trial.candidate.micro_batch, trial.outcome.memory)
                for trial in own
                if isinstance(trial.outcome, Ok)
            ]
            if not fitting:
                continue
            out = [
                (trial.candidate.micro_batch, trial.outcome)
                for trial in own
                if isinstance(trial.outcome, Oom) and trial.outcome.where == "device"
            ]
            found[rung] = _of(fitting, out, budget)
        return ProbeLines(found)

    def covers(self, candidate: Candidate) -> bool:
        """Tell whether a probe of the candidate's rung has fitted."""
        return candidate.rung() in self._rungs

    def bounds(self, candidate: Candidate) -> Corrected | None:
        """Return the peak with its interval (bytes); None before a probe of the rung has fitted."""
        known = self._rungs.get(candidate.rung())
        return None if known is None else known.bounds(candidate.micro_batch)

    def predict(self, candidate: Candidate) -> Prediction | None:
        """Return what a probe of the candidate should measure; None before one of its rung has fitted."""
        known, bounds = self._rungs.get(candidate.rung()), self.bounds(candidate)
        if known is None or bounds is None:
            return None
        beside = max(0, known.last.peak() - known.last.allocated)
        tensors, before = max(0, round(bounds.mean) - beside), known.last.breakdown
        fixed = before.parameters + before.gradients + before.optimizer_state
        breakdown = before.model_copy(update={"activations": max(0, tensors - fixed - before.other)})
        assert isinstance(breakdown, Breakdown)
        return Prediction(
            allocated=tensors, reserved=tensors, peak=round(bounds.mean), low=max(0, round(bounds.low)),
            high=round(bounds.high), breakdown=breakdown,
        )  # fmt: skip

    def phase_above(self, candidate: Candidate, usable: int) -> Phase:  # noqa: ARG002
        """Return the phase in which a candidate that is predicted to be over is taken to run out."""
        return self._rungs[candidate.rung()].out_in

    def largest(
        self,
        rung: Candidate,
        usable: int,
        sizes: Sequence[int],
        bound: Literal["low", "mean", "high"] = "mean",
    ) -> int | None:
        """Return the largest of these micro-batches, smallest first, whose peak is at most `usable` bytes.

        0 where none is, None before a probe of the rung has fitted. An interval widens on both sides of what was
        probed, so its upper end need not grow from the smallest on: what is no larger than one that fitted does fit.
        """
        known = self._rungs.get(rung.rung())
        if known is None:
            return None
        low, high = 0, len(sizes)
        seen = max((size for size, peak in known.points[: known.fitted] if peak <= usable), default=0)
        while low < high:  # the first so many fit
            middle = (low + high + 1) // 2
            size = sizes[middle - 1]
            fits = size <= seen or float(getattr(known.bounds(size), bound)) <= usable
            low, high = (middle, high) if fits else (low, middle - 1)
        return sizes[low - 1] if low else 0


def _of(fitting: Iterable[tuple[int, Memory]], out: Sequence[tuple[int, Oom]], budget: int) -> _Rung:
    sizes = sorted(fitting, key=lambda one: one[0])
    points = tuple((size, float(memory.peak())) for size, memory in sizes)
    phase: Phase = out[-1][1].phase if out else "forward"
    rung = _Rung(points, len(points), sizes[-1][1], phase)
    for size, _ in out:
        if rung.bounds(size).mean < budget:  # all that it measured is that the peak is above the budget
            rung = replace(rung, points=(*rung.points, (size, float(budget))))
    return rung
