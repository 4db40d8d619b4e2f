"""What a probe is going to take, which decides whether it is worth its time. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict

from autotune.candidate import Candidate
from autotune.outcome import Ok
from autotune.trial import History

MICRO_STEPS = 7
"""Of a probe that accumulates, at least: one and two in the steps that warm up, two in each of two that are measured
(`worker/measuring/measure`; three are, where micro-steps are not alike)."""
OPTIMIZER_STEPS = 4
"""Of any probe, at least: two and two."""
START = 5.0
"""Seconds beside the steps before any probe has shown it: the launch and the model's build. Assumed."""
COMPILATION = 45.0
"""What the first compiled blocks add. Assumed."""


class ProbeCost:
    """Seconds of a probe: its steps, and what probes of its kind took beside them."""

    def __init__(self, history: History) -> None:
        """Learn from the probes of a run."""
        beside: defaultdict[str, list[float]] = defaultdict(list)
        for trial in history:
            # One that ended early took fewer steps, of which no speed is known; one of an earlier run took none here.
            if (
                isinstance(trial.outcome, Ok)
                and (timing := trial.outcome.timing) is not None
                and trial.seconds
            ):
                accumulation = trial.outcome.accumulation_steps
                steps = _steps(timing.global_step(accumulation), accumulation)
                beside[trial.candidate.compile].append(max(0.0, trial.seconds - steps))
        self._beside = {compiled: statistics.median(seconds) for compiled, seconds in beside.items()}

    def seconds(self, candidate: Candidate, global_step: float, accumulation: int) -> float:
        """Return what a probe is expected to take whose global step of so many micro-steps takes so many seconds."""
        return self.start(candidate.compile) + _steps(global_step, accumulation)

    def start(self, compiled: str) -> float:
        """Return what a probe is expected to take beside its steps, where blocks are compiled so."""
        if compiled in self._beside:
            return self._beside[compiled]
        return self._beside.get("none", START) + (COMPILATION if compiled != "none" else 0.0)


def _steps(global_step: float, accumulation: int) -> float:
    """Return the seconds of a probe's own steps, which have two micro-steps at most."""
    return OPTIMIZER_STEPS * global_step if accumulation == 1 else MICRO_STEPS * global_step / accumulation
