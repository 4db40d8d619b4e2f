"""Verdicts, rungs and reasons in words, for every report alike."""

from __future__ import annotations

from autotune.candidate import Candidate
from autotune.objective import Objective, ObjectiveName
from autotune.outcome import Crash, Drift, Lost, NonFinite, Ok, Oom, Outcome, Timeout, Unsupported
from autotune.prediction import Prediction
from autotune.search.comparison import fast_enough, is_better, lead
from autotune.search.context import SearchContext
from autotune.search.incumbent import Bound, bound_of
from autotune.search.selection import Pairs, Score, rank
from autotune.techniques.families import title as title_of
from autotune.trial import History, Trial
from autotune.units import format_bytes, format_duration, format_slowdown

PHASES = {
    "start": "starting up", "build": "building the model", "forward": "forward", "backward": "backward",
    "optimizer": "optimizer step", "evaluation": "evaluation", "save": "saving a checkpoint",
}  # fmt: skip
"""Phases as people read them."""


def comes_nearest(peak: int) -> str:
    """Return why what is predicted not to fit, with a peak of so many bytes, is tried all the same."""
    return f"nothing is predicted to fit; this comes nearest, with {format_bytes(peak)}"


def verdict(outcome: Outcome, context: SearchContext) -> str:
    """Return a verdict in a few words: `fits`, `OOM in backward`."""
    match outcome:
        case Ok(memory=memory):
            return "fits" if context.fits(memory) else "fits without headroom"
        case Oom(phase=phase, where=where):
            return f"OOM in {PHASES[phase]}" + (f" ({where})" if where != "device" else "")
        case NonFinite(what=what, step=step):
            return f"{what} not finite at step {step}"
        case Timeout(seconds=seconds):
            return f"no end after {format_duration(seconds)}"
        case Crash(reason=reason):
            return f"crashed ({reason})"
        case Lost():
            return "unknown (lost)"
        case Unsupported():
            return "not supported"


def skipped(candidate: Candidate, prediction: Prediction, context: SearchContext) -> str:
    """Return in one line that a candidate was passed over, and by which prediction."""
    return (
        f"{title_of(candidate)}, micro-batch {candidate.micro_batch}: passed over, predicted {expected(prediction)} of "
        f"{format_bytes(context.usable)}"
    )


def expected(prediction: Prediction) -> str:
    """Return a predicted peak with the half-width of its interval."""
    return f"{format_bytes(prediction.peak)} ± {format_bytes((prediction.high - prediction.low) // 2)}"


def detail(outcome: Outcome) -> str:
    """Return what stands behind a verdict that is not good, in one line; empty where there is nothing."""
    match outcome:
        case Oom(requested=int(requested), free=int(free)) if free >= requested:  # seen too late to tell
            return f"{format_bytes(requested)} were refused"
        case Oom(requested=int(requested), free=int(free)):
            return f"{format_bytes(requested)} were asked for with {format_bytes(free)} free"
        case Oom(message=message) | Crash(message=message) | Lost(message=message):
            return message
        case Unsupported(reason=reason):
            return reason
        case _:
            return ""


def rejected(
    history: History,
    context: SearchContext,
    winner: Trial,
    drift: Drift | None = None,
    pairs: Pairs | None = None,
) -> list[tuple[str, str]]:
    """Return each rung other than the winner's, and each larger micro-batch of its own, with why it lost.

    What the objective does not tell from the winner is called so: it lost nothing.
    """
    scores, objective = rank(history, context, drift, pairs), context.goal.objective
    enough = {id(entry) for entry in fast_enough(scores, objective)}
    best = next((s for s in scores if s.trial == winner), None)
    reasons: list[tuple[str, str]] = []
    fitting_of: dict[Candidate, list[Score]] = {}
    for entry in scores:
        if entry.trial != winner:
            fitting_of.setdefault(entry.trial.candidate.rung(), []).append(entry)
    trials_of: dict[Candidate, list[Trial]] = {}
    for trial in history:
        trials_of.setdefault(trial.candidate.rung(), []).append(trial)
    for rung, trials in trials_of.items():
        own = rung == winner.candidate.rung()
        fitting = fitting_of.get(rung, [])
        slow = [bound for t in trials if t != winner and (bound := bound_of(t, context, drift)) is not None]
        said = [_worse(fitting[0], best, objective, id(fitting[0]) in enough)] if fitting and best else []
        if slow and best and not fitting:
            said.append(_at_least(min(slow, key=lambda bound: bound.seconds), best))
        failing = min(
            (t for t in trials if not (isinstance(t.outcome, Ok) and context.fits(t.outcome.memory))),
            key=lambda t: t.candidate.micro_batch, default=None,
        )  # fmt: skip
        if failing is not None:
            extra = detail(failing.outcome)
            said.append(
                f"micro-batch {failing.candidate.micro_batch}: {verdict(failing.outcome, context)}"
                + (f", {extra}" if extra else "")
            )
        if said:
            reasons.append((title_of(rung) + (" (the winner's own)" if own else ""), "; ".join(said)))
    return reasons


BEST_IN: dict[ObjectiveName, str] = {
    "speed": "the fastest", "memory": "the smallest that is fast enough", "cost": "the cheapest for each token",
    "energy": "the one that takes the least energy for each token",
}  # fmt: skip
"""What a winner is, by the run's objective."""
COMPARED: dict[ObjectiveName, str] = {
    "speed": "speed",
    "memory": "peak memory",
    "cost": "speed, and so by cost",
    "energy": "energy",
}
"""By what a run of each objective tells configurations apart."""
REASONS = {
    "speed": "its smaller time",
    "finals": "its smaller time in the finals",
    "prediction": "its smaller predicted time",
    "memory": "its smaller peak",
    "energy": "its smaller energy",
    "proof": "its proof, which held",
}  # fmt: skip
SHOWN = 3
"""Alternatives that are named one by one."""


def _worse(score: Score, best: Score, objective: Objective, enough: bool) -> str:
    """Return by what a configuration that fits is worse than the winner."""
    slower = _slower(score, best)
    match objective.name:
        case "memory":
            share = f"{objective.speed_share:.0%} of the best speed"
            peak = f"{format_bytes(score.peak)} at the peak"
            if not enough:
                return f"{slower}, {peak}; slower than {share}"
            same = "" if is_better(best, score, objective) else ": as large as far as launches tell"
            return f"{slower}, {peak}{same}"
        case "energy" if score.joules is not None and best.joules is not None:
            more = score.joules.mean / best.joules.mean - 1
            known = "" if is_better(best, score, objective) else " (not distinguishable)"
            return f"{slower}, {more:+.1%} energy{known}"
        case _:
            return slower


def _at_least(bound: Bound, best: Score) -> str:
    share = bound.seconds / best.seconds - 1
    slower = f"at least {share:.1%} slower" if share > 0 else "not sure to be slower"
    return f"micro-batch {bound.micro_batch}: {slower}, so it was not measured to the end"


def _slower(score: Score, best: Score) -> str:
    share, noise = lead(best, score) / best.seconds, best.apart(score) / best.seconds
    size = f"micro-batch {score.trial.candidate.micro_batch}"
    if share and abs(share) <= noise:
        measured = format_slowdown(share) if share > 0 else f"{-share:.1%} faster"
        return f"{size}: not distinguishable (measured {measured}, ± {noise:.1%})"
    if share > 0:
        return f"{size}: {format_slowdown(share)}"
    return f"{size}: as fast, but its proof failed" if share < 0 else f"{size}: as fast"
