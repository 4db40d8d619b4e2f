"""Predict what a candidate will take before it is launched, and which micro-batch is the largest that fits.

Pure: timelines come from traces, measurements from a run's history. Nothing here says that a candidate does not fit;
only a probe proves that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from autotune.candidate import Candidate
from autotune.memory.calibration import Calibration, Corrected, Observation, Prior
from autotune.memory.timeline import CATEGORIES, Peak, Timeline
from autotune.outcome import Breakdown, Ok, Oom
from autotune.trial import History
from autotune.units import MIB
from autotune.validation import Frozen

CUDA_CONTEXT = 480 * MIB
"""Bytes that a process's CUDA context and loaded kernels take on the device, where no probe has measured them.

They differ by GPU and driver by some 150 MiB, which is the spread that is assumed with it."""
CUDA_CONTEXT_SPREAD = 150 * MIB
CPU_UNTOUCHED = 108 * MIB
"""Private memory of a CPU process beyond baseline and tensors, which counts against its limit although it is never
touched: threads' stacks, the worker's reserve. 108 to 111 MiB in all of ten probes of GPT-2 on 2 cores (torch 2.13)."""
CPU_SPREAD = 24 * MIB
"""Spread that is assumed with it: other machines run more threads."""


@dataclass(frozen=True)
class Ground:
    """What a run's device takes and grants beside the tensors, in bytes."""

    kind: Literal["cpu", "cuda"]
    baseline: int
    """What the process holds beside the model: interpreter and libraries, or the CUDA context."""
    spread: int
    """Standard deviation of what is not known of the baseline."""
    blas_workspace: int = 0
    """Of one cuBLAS handle."""

    @classmethod
    def measured(cls, kind: Literal["cpu", "cuda"], baseline: int, blas_workspace: int = 0) -> Ground:
        """Return the ground of a device whose baseline a worker measured; 0 on CUDA means that it could not."""
        if kind == "cpu":
            return cls("cpu", baseline + CPU_UNTOUCHED, CPU_SPREAD)
        if not baseline:
            return cls("cuda", CUDA_CONTEXT, CUDA_CONTEXT_SPREAD, blas_workspace)
        return cls("cuda", baseline, CUDA_CONTEXT_SPREAD // 3, blas_workspace)


class Prediction(Frozen):
    """What a probe of a candidate is expected to measure; bytes, compared with `Memory.peak()`."""

    allocated: int
    """Peak of tensor bytes, uncorrected."""
    reserved: int
    """Peak of the caching allocator (CUDA), uncorrected; the tensor bytes elsewhere."""
    peak: int
    """Peak of what counts against the budget, corrected by the probes so far."""
    low: int
    high: int
    """The 95% interval of `peak`."""
    breakdown: Breakdown
    """Of `allocated`, by what it holds."""

    def verdict(self, usable: int) -> Literal["fits", "over", "unsure"]:
        """Compare the whole interval with the bytes that may be used."""
        if self.high <= usable:
            return "fits"
        return "over" if self.low > usable else "unsure"


@dataclass
class Predictor:
    """Predictions for the rungs that were traced, corrected by a history."""

    timelines: Mapping[str, Timeline]
    """By `Candidate.rung().key()`; rungs that differ in `expandable_segments` alone may share one."""
    ground: Ground
    calibration: Calibration = field(init=False)
    _raw: dict[tuple[Candidate, bool], tuple[int, int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.calibration = Calibration(self._prior())

    def learn(self, history: History, accumulating: Callable[[int], bool], budget: int) -> None:
        """Calibrate by the probes of a history; what was learnt before is replaced.

        A probe that ran out of device memory measured only that its peak is above the budget: it counts as that
        where the prediction so far is below. `accumulating` tells whether a micro-batch takes several micro-steps.
        """
        observations = []
        for trial in history:
            raw = self._total(trial.candidate, accumulating(trial.candidate.micro_batch))
            if raw is not None and isinstance(trial.outcome, Ok):
                measured = float(trial.outcome.memory.peak())
                observations.append(Observation(_rung(trial.candidate), raw, measured))
        self.calibration = Calibration(self._prior(), observations)
        for trial in history:
            if not isinstance(trial.outcome, Oom) or trial.outcome.where != "device":
                continue
            raw = self._total(trial.candidate, accumulating(trial.candidate.micro_batch))
            if raw is not None and self.calibration.correct(_rung(trial.candidate), raw).mean < budget:
                observations.append(Observation(_rung(trial.candidate), raw, float(budget)))
                self.calibration = Calibration(self._prior(), observations)

    def predict(self, candidate: Candidate, accumulating: bool = False) -> Prediction | None:
        """Return what a probe of the candidate should measure; None where its trace does not cover it."""
        raw = self._usage(candidate, accumulating)
        total = self._total(candidate, accumulating)
        timeline = self._timeline(candidate)
        if raw is None or total is None or timeline is None:
            return None
        corrected = self.calibration.correct(_rung(candidate), total)
        return Prediction(
            allocated=raw[0],
            reserved=raw[1],
            peak=round(corrected.mean),
            low=round(corrected.low),
            high=round(corrected.high),
            breakdown=_breakdown(timeline.peak(candidate.micro_batch, accumulating)),
        )

    def largest(
        self, rung: Candidate, usable: int, limit: int, accumulating: Callable[[int], bool]
    ) -> int | None:
        """Return the largest micro-batch up to `limit` whose expected peak is at most `usable` bytes.

        0 where not even 1 fits, None where the rung was not traced. Found by bisection: memory grows with the
        micro-batch, but for the micro-step that accumulation adds, which only a smaller micro-batch needs.
        """

        def fits(micro_batch: int) -> bool:
            peak = self._corrected(rung.at(micro_batch), accumulating(micro_batch))
            return peak is not None and peak.mean <= usable

        if self._timeline(rung) is None:
            return None
        if not fits(1):
            return 0
        low, high = 1, 2
        while high <= limit and fits(high):
            low, high = high, high * 2
        high = min(high, limit + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _prior(self) -> Prior:
        if self.ground.kind == "cpu":
            return Prior(offset=self.ground.spread)
        return Prior(offset=self.ground.spread, slope=0.03)

    def _timeline(self, candidate: Candidate) -> Timeline | None:
        key = candidate.rung().key()
        if key in self.timelines:
            return self.timelines[key]
        other = candidate.model_copy(update={"expandable_segments": not candidate.expandable_segments})
        return self.timelines.get(other.rung().key())

    def _usage(self, candidate: Candidate, accumulating: bool) -> tuple[int, int] | None:
        """Return (allocated, reserved), uncorrected."""
        timeline = self._timeline(candidate)
        if timeline is None or not timeline.covers(candidate.micro_batch):
            return None
        key = (candidate, accumulating)
        if key not in self._raw:
            if self.ground.kind == "cpu":
                bytes_ = timeline.allocated(candidate.micro_batch, accumulating)
                self._raw[key] = (bytes_, bytes_)
            else:
                usage = timeline.usage(
                    candidate.micro_batch, accumulating, candidate.expandable_segments,
                    blas_workspace=self.ground.blas_workspace,
                )  # fmt: skip
                self._raw[key] = (usage.allocated_peak, usage.reserved_peak)
        return self._raw[key]

    def _total(self, candidate: Candidate, accumulating: bool) -> float | None:
        usage = self._usage(candidate, accumulating)
        return None if usage is None else float(self.ground.baseline + usage[1])

    def _corrected(self, candidate: Candidate, accumulating: bool) -> Corrected | None:
        total = self._total(candidate, accumulating)
        return None if total is None else self.calibration.correct(_rung(candidate), total)


def _rung(candidate: Candidate) -> str:
    return candidate.rung().key()


def _breakdown(peak: Peak) -> Breakdown:
    parts = peak.breakdown
    named = ("parameter", "gradient", "optimizer_state", "activation")
    return Breakdown(
        parameters=parts["parameter"],
        gradients=parts["gradient"],
        optimizer_state=parts["optimizer_state"],
        activations=parts["activation"],
        other=sum(parts[name] for name in CATEGORIES if name not in named),
    )
