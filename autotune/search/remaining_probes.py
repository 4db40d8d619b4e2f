"""How much of a search is still ahead, told from what a strategy would do next."""

from __future__ import annotations

from autotune.candidate import Candidate
from autotune.outcome import Breakdown, Memory, Ok, Oom, Outcome, Sample, StepTiming
from autotune.search.context import SearchContext
from autotune.search.strategy import Strategy, Try, decide
from autotune.trial import History, Trial

_MOST = 60


def count_remaining_probes(strategy: Strategy, history: History, context: SearchContext) -> int:
    """Return how many probes the search still needs, about; no more than its limits leave.

    What is predicted comes true; for the rest it is the mean of all fitting and none fitting.
    """
    counts = [
        _count(strategy, history, context, unknown) for unknown in (_fits(context, 0), Oom(phase="start"))
    ]
    return round(sum(counts) / len(counts))


def _count(strategy: Strategy, history: History, context: SearchContext, unknown: Outcome) -> int:
    """Return the probes to the end if each of them comes to what is predicted, or else to `unknown`."""
    ahead = 0
    while ahead < _MOST:
        decision = decide(strategy, history, context)
        if not isinstance(decision, Try):  # what a trace will show is not known
            break
        ahead += 1
        outcome = _expected(decision.candidate, context) or unknown
        history += (
            Trial(
                number=len(history) + 1, candidate=decision.candidate, node=decision.node, why="",
                outcome=outcome, seconds=0.0,
            ),
        )  # fmt: skip
    return ahead


def _expected(candidate: Candidate, context: SearchContext) -> Outcome | None:
    bounds = context.predictor.bounds(candidate) if context.predictor else None
    return None if bounds is None else _fits(context, round(bounds.mean))


def _fits(context: SearchContext, peak: int) -> Ok:
    nothing = Breakdown(parameters=0, gradients=0, optimizer_state=0, activations=0, other=0)
    memory = Memory(
        allocated=peak, reserved=peak, device_peak=peak, budget=context.budget, baseline=0, breakdown=nothing
    )
    instant = Sample(mean=1.0, half_width=None, count=1)
    timing = StepTiming(micro_step=instant, last_micro_step=instant, optimizer_step=instant)
    return Ok(memory=memory, timing=timing, phases=(), losses=(), accumulation_steps=1)
