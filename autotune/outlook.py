"""How much of a search is still ahead, told from what a strategy would do next."""

from __future__ import annotations

from autotune.outcome import Breakdown, Memory, Ok, Oom, Outcome, Sample, StepTiming
from autotune.space import Space
from autotune.strategies.climb import propose
from autotune.strategies.decision import Done, Scope
from autotune.trial import History, Trial

_MOST = 60


def probes_ahead(history: History, space: Space, scope: Scope) -> int:
    """Return how many probes the search still needs, about: the mean of all fitting and none fitting."""
    return round(
        (_count(history, space, scope, _fits(scope)) + _count(history, space, scope, Oom(phase="start"))) / 2
    )


def _count(history: History, space: Space, scope: Scope, outcome: Outcome) -> int:
    """Return the probes to the end if each of them came to `outcome`."""
    ahead = 0
    while ahead < _MOST and not isinstance(decision := propose(history, space, scope), Done):
        ahead += 1
        history += (
            Trial(
                number=len(history) + 1, candidate=decision.candidate, node=decision.node, why="",
                outcome=outcome, seconds=0.0,
            ),
        )  # fmt: skip
    return ahead


def _fits(scope: Scope) -> Ok:
    nothing = Breakdown(parameters=0, gradients=0, optimizer_state=0, activations=0, other=0)
    memory = Memory(
        allocated=0, reserved=0, device_peak=0, budget=scope.budget, baseline=0, breakdown=nothing
    )
    instant = Sample(mean=1.0, half_width=None, count=1)
    timing = StepTiming(micro_step=instant, last_micro_step=instant, optimizer_step=instant)
    return Ok(memory=memory, timing=timing, phases=(), losses=(), accumulation_steps=1)
