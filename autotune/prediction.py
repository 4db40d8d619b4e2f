"""What a probe is expected to measure before it is launched."""

from __future__ import annotations

from typing import Literal

from autotune.candidate import Candidate
from autotune.outcome import Breakdown, StepTiming
from autotune.validation import Frozen


class Prediction(Frozen):
    """The memory model's word on a candidate; bytes, compared with `Memory.peak()`."""

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
    timing: StepTiming | None = None
    """Parts of a global step, by the roofline corrected by the probes so far; None where the hardware is unknown."""
    roofline: StepTiming | None = None
    """The same, uncorrected: what later probes teach corrects it anew."""

    def verdict(self, usable: int) -> Literal["fits", "over", "unsure"]:
        """Compare the whole interval with the bytes that may be used."""
        if self.high <= usable:
            return "fits"
        return "over" if self.low > usable else "unsure"

    def error(self, measured: int) -> float:
        """Return by what share of the measured peak (bytes) the prediction was off; positive when too high."""
        return self.peak / max(1, measured) - 1


class Priced(Frozen):
    """What a configuration that was not probed would take and how fast it would be, by all that a run measured."""

    candidate: Candidate
    peak: int
    """Bytes that would count against the budget."""
    low: int
    high: int
    """The 95% interval of `peak`."""
    seconds: float | None = None
    """Of a whole global step; None where times are not predicted."""
    half_width: float | None = None
    """Of the 95% interval of `seconds`; None likewise."""
