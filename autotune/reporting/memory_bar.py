"""Memory against the budget as a bar: what the tensors hold, what is beside them, and what was predicted."""

from __future__ import annotations

from autotune.outcome import Memory, Ok, Oom
from autotune.prediction import Prediction
from autotune.reporting.drawing import TEXTURES, number
from autotune.reporting.markup import escaped
from autotune.run.best import Best
from autotune.search.context import SearchContext
from autotune.trial import Trial
from autotune.units import format_bytes

PARTS = {
    "parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer state",
    "activations": "activations", "other": "other tensors",
}  # fmt: skip
"""Fields of `Breakdown` in the order of a bar, with their names."""
REST = "libraries, allocator, runtime"
"""What counts against the budget beyond the tensors."""
NAMES = {**PARTS, "rest": REST}
MORE_IN_PROOF = "more in the proof"
OF_WINNER = {**NAMES, "proven": MORE_IN_PROOF}
"""Of a winner's bar: what its proof took beyond the steps of training, by an evaluation, say."""
_WIDE = 400.0
"""Units of a bar's drawing."""
_BEYOND = 1.12
"""Budgets that a bar is wide: what was asked for beyond it is seen."""


def winner_bar(best: Best, usable: int) -> str:
    """Return the bar of a winner, with its numbers for those who do not see it."""
    parts = winner_parts(best)
    told = _told(best.peak(), parts, best.memory.budget)
    return _drawn(parts, best.memory.budget, usable, None, told, "bar tall")


def winner_parts(best: Best) -> list[tuple[str, int]]:
    """Return what a winner's peak consists of, as (class, bytes); the last only where its proof took more."""
    more = more_in_proof(best)
    return [*_parts(best.memory), *([("proven", more)] if more else [])]


def more_in_proof(best: Best) -> int:
    """Return the bytes by which a winner's proof went beyond its recorded peak; 0 where both read the same."""
    recorded, proven = best.memory.peak(), best.peak()
    return 0 if format_bytes(recorded) == format_bytes(proven) else proven - recorded


def trial_bar(trial: Trial, context: SearchContext) -> str:
    """Return the bar of a trial: as it measured, or as far as it came; a mark stands where it was predicted."""
    outcome, prediction = trial.outcome, trial.prediction
    if isinstance(outcome, Ok):
        parts = _parts(outcome.memory)
        told = _told(outcome.memory.peak(), parts, outcome.memory.budget)
        return _drawn(parts, context.budget, context.usable, prediction, told)
    if isinstance(outcome, Oom) and outcome.requested is not None and outcome.free is not None:
        held = max(0, context.budget - outcome.free)
        told = f"{format_bytes(held)} taken, {format_bytes(outcome.requested)} more refused"
        return _drawn(
            [("rest", held), ("refused", outcome.requested)],
            context.budget,
            context.usable,
            prediction,
            told,
        )
    if prediction is None:
        return ""
    return _drawn(
        [], context.budget, context.usable, prediction, f"predicted {format_bytes(prediction.peak)}"
    )


def _parts(memory: Memory) -> list[tuple[str, int]]:
    """Return what the peak consists of, as (class, bytes)."""
    held = [(name, getattr(memory.breakdown, name)) for name in PARTS]
    rest = memory.peak() - sum(size for _, size in held)
    return [*held, ("rest", max(0, rest))]


def _told(peak: int, parts: list[tuple[str, int]], budget: int) -> str:
    """Return the numbers of a bar in words."""
    each = ", ".join(f"{OF_WINNER[name]} {format_bytes(size)}" for name, size in parts if size)
    return f"{format_bytes(peak)} of {format_bytes(budget)}: {each}"


def _drawn(
    parts: list[tuple[str, int]],
    budget: int,
    usable: int,
    prediction: Prediction | None,
    told: str,
    kind: str = "bar",
) -> str:
    def at(size: float) -> float:
        return min(_WIDE, size / budget / _BEYOND * _WIDE)

    drawn: list[str] = []
    start = 0.0
    for name, size in parts:
        wide = at(start + size) - at(start)
        if wide >= 0.05:
            rect = f'<rect x="{number(at(start))}" width="{number(wide)}" height="26"'
            drawn.append(f'{rect} class="s-{name}"/>')
            if name in TEXTURES:
                drawn.append(f'{rect} fill="url(#t-{name})"/>')
        start += size
    drawn.append(f'<path class="limit" d="M{number(at(budget))} 0v26"/>')
    if usable < budget:
        drawn.append(f'<path class="limit" stroke-dasharray="3 3" d="M{number(at(usable))} 0v26"/>')
    if prediction is not None:
        low, mid, high = (number(at(size)) for size in (prediction.low, prediction.peak, prediction.high))
        drawn.append(f'<path class="whisker" d="M{low} 13H{high}M{low} 8v10M{high} 8v10M{mid} 3v20"/>')
    return (
        f'<svg class="{kind}" viewBox="0 0 {_WIDE:.0f} 26" preserveAspectRatio="none" role="img">'
        f"<title>{escaped(told)}</title>{''.join(drawn)}</svg>"
    )
