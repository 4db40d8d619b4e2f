"""What a token costs, in money and in energy, at a score's speed. Pure."""

from __future__ import annotations

from autotune.search.selection import Score
from autotune.specs import Goal

_HOUR = 3600
_MILLION = 10**6


def cost_per_million_tokens(score: Score, goal: Goal) -> tuple[float, float] | None:
    """Return what a million tokens cost on all devices, with the half-width of its 95% interval; None without a price.

    Tokens are those of the global batch that was asked for: what accumulation adds beyond it is paid for, not counted.
    """
    price = goal.objective.price
    if price is None:
        return None
    of_a_second = price.amount * goal.gpus / _HOUR * _MILLION / score.accumulation.target
    return score.seconds * of_a_second, score.half_width * of_a_second


def joules_per_token(score: Score) -> tuple[float, float] | None:
    """Return the joules of all devices for each token that was asked for, with the half-width of its 95% interval.

    None where they were not measured.
    """
    if score.joules is None:
        return None
    tokens = score.accumulation.target
    return score.joules.mean / tokens, score.joules.half_width / tokens
