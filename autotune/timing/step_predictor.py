"""Times of a candidate's step before it is probed: its timeline on a machine's roofline, uncorrected."""

from __future__ import annotations

from collections.abc import Callable

from autotune.candidate import Candidate
from autotune.memory.predictor import Predictor
from autotune.outcome import StepTiming
from autotune.timing.machine import Machine
from autotune.timing.roofline import step_time


class StepPredictor:
    """Prices the rungs of a memory model's timelines. Immutable but for what it remembers."""

    def __init__(
        self, predictor: Predictor, machine: Machine, accumulating: Callable[[Candidate], bool]
    ) -> None:
        """`accumulating` tells whether a candidate takes several micro-steps for an optimizer step."""
        self._predictor = predictor
        self._machine = machine
        self._accumulating = accumulating
        self._known: dict[Candidate, StepTiming | None] = {}

    def timing(self, candidate: Candidate) -> StepTiming | None:
        """Return the parts of a global step in seconds; None where no timeline tells of the candidate's work."""
        if candidate not in self._known:
            self._known[candidate] = self._priced(candidate)
        return self._known[candidate]

    def _priced(self, candidate: Candidate) -> StepTiming | None:
        timeline = self._predictor.timeline(candidate)
        if timeline is None:
            return None
        step = step_time(timeline, candidate.micro_batch, self._machine, self._accumulating(candidate))
        return None if step is None else step.timing()
