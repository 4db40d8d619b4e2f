"""A trial: a probe with what it came to; what rematches and its proof showed. A history is a tuple of trials."""

from __future__ import annotations

from typing import Literal

from autotune.candidate import Candidate
from autotune.outcome import Ok, Outcome
from autotune.prediction import Prediction
from autotune.site import Site
from autotune.validation import Frozen

TRIES = 3
"""Times that a probe or a proof is tried which something outside ends; then it is recorded as lost."""


class Trial(Frozen):
    """One probe of a candidate. Trials are numbered from 1 in the order in which they were started."""

    number: int
    candidate: Candidate
    node: str
    """Where in the search it was asked for: a node of the decision graph, or what another strategy calls it."""
    why: str
    outcome: Outcome
    seconds: float
    """Wall time from launch to the last process reaped; 0 where nothing was launched."""
    prediction: Prediction | None = None
    """What the memory model expected of it; None where it was not traced."""

    def error(self) -> float | None:
        """Return by what share of the measured peak the prediction was off; None without one of both."""
        if self.prediction is None or not isinstance(self.outcome, Ok):
            return None
        return self.prediction.error(self.outcome.memory.peak())

    def time_error(self) -> float | None:
        """Return by what share of the measured last micro-step its prediction was off; None without one of both."""
        if self.prediction is None or self.prediction.timing is None or not isinstance(self.outcome, Ok):
            return None
        if self.outcome.timing is None:
            return None
        return self.prediction.timing.last_micro_step.mean / self.outcome.timing.last_micro_step.mean - 1


class ProofFinished(Frozen):
    """What the relaunch showed."""

    type: Literal["proof_finished"] = "proof_finished"
    number: int
    outcome: Outcome
    passed: bool
    why: str
    """One sentence: what held, or which check failed."""
    failed: tuple[str, ...] = ()
    """Names of the checks that failed; empty where the relaunch did not even train."""
    seconds: float
    site: Site | None = None
    """Where it ran, if elsewhere than its tuner's `opened` says."""
    written: tuple[str, ...] = ()
    """Files that a command of the user's own wrote outside of its scratch folder."""


class RematchFinished(Frozen):
    """What a finalist showed when it was measured again."""

    type: Literal["rematch_finished"] = "rematch_finished"
    number: int
    """Of its trial."""
    round: int
    """From 1: each round measures all of its finalists."""
    finalists: tuple[int, ...]
    """The trials of the round, in the order in which they are measured."""
    outcome: Outcome
    seconds: float
    site: Site | None = None
    """Where it ran, if elsewhere than its tuner's `opened` says."""


History = tuple[Trial, ...]
