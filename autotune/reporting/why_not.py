"""Why each probe is not the winner, in a sentence of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autotune.outcome import Ok
from autotune.reporting.reported import Reported
from autotune.search.comparison import fast_enough, is_better, lead
from autotune.search.context import SearchContext
from autotune.search.drift import drift_of
from autotune.search.incumbent import bound_of
from autotune.search.selection import Score, score
from autotune.search.wording import detail
from autotune.trial import Trial
from autotune.units import format_bytes, format_slowdown

WINNER = "the winner"


def reasons(run: Reported) -> Mapping[int, str]:
    """Return by the number of each trial why it is not the winner; `the winner` for that itself.

    Without a winner only what was refused has a reason.
    """
    context, best = run.context, run.best
    if context is None:
        return {}
    record = run.record
    drift = (
        best.drift
        if best and best.drift
        else drift_of(record.history, (*record.rematches, *record.proofs), context)
    )
    pairs = run.pairs
    scores = {
        trial.number: replace(score(trial, context, drift), pairs=pairs.get(trial.number, {}))
        for trial in run.trials
        if _is_measured(trial, context)
    }
    winner = run.winner
    won = scores.get(winner.number) if winner is not None else None
    objective = context.goal.objective
    enough = {entry.trial.number for entry in fast_enough(list(scores.values()), objective)}
    failed = {proof.number: proof.why for proof in record.proofs if not proof.passed}
    found = {}
    for trial in record.history:
        outcome = trial.outcome
        if winner is not None and trial.number == winner.number:
            found[trial.number] = WINNER
        elif not isinstance(outcome, Ok):
            found[trial.number] = detail(outcome)
        elif not context.fits(outcome.memory):
            over = outcome.memory.peak() - context.usable
            found[trial.number] = f"{format_bytes(over)} more than the headroom leaves"
        elif trial.number in failed:
            found[trial.number] = failed[trial.number]
        elif won is None:
            found[trial.number] = ""
        elif trial.number in scores:
            found[trial.number] = _worse(scores[trial.number], won, run, trial.number in enough)
        else:
            found[trial.number] = _ended_early(trial, won, run)
    return found


def _is_measured(trial: Trial, context: SearchContext) -> bool:
    """Tell whether a trial leaves the headroom and has a speed at the global batch."""
    outcome = trial.outcome
    return (
        isinstance(outcome, Ok)
        and outcome.timing is not None
        and context.fits(outcome.memory)
        and context.batches(trial.candidate).allows(trial.candidate.micro_batch)
    )


def _worse(one: Score, won: Score, run: Reported, enough: bool) -> str:
    """Return by what a trial that fits is worse than the winner by the run's objective."""
    assert run.context is not None
    objective = run.context.goal.objective
    share, noise = lead(won, one) / won.seconds, won.apart(one) / won.seconds
    if abs(share) <= noise:
        by = f"{share:+.1%}" if share else "as fast"
        said = f"not distinguishable by speed ({by}, ± {noise:.1%})"
    else:
        said = format_slowdown(share) if share > 0 else f"{-share:.1%} faster"
    if objective.name == "memory":
        more = one.peak - won.peak
        said += f"; {format_bytes(abs(more))} {'more' if more >= 0 else 'less'} at the peak"
        if not enough:
            said += f"; slower than {objective.speed_share:.0%} of the best speed"
    elif objective.name == "energy" and one.joules is not None and won.joules is not None:
        known = "" if is_better(won, one, objective) else " (not distinguishable)"
        said += f"; {one.joules.mean / won.joules.mean - 1:+.1%} energy{known}"
    return said


def _ended_early(trial: Trial, won: Score, run: Reported) -> str:
    assert run.context is not None
    bound = bound_of(trial, run.context, run.best.drift if run.best else None)
    if bound is None:
        return "its micro-batch cannot make up the global batch"
    share = bound.seconds / won.seconds - 1
    if share > 0:
        return f"at least {share:.1%} slower, so it was not measured to the end"
    return "not sure to be slower; it was not measured to the end"
