"""The finals of a search: what nothing tells apart is measured again, in alternation, until it does. Pure.

The finalists are the fastest trial and those whose interval, widened by drift, overlaps its own; also one that ended
early, if what beat it turned out to be slower than that. Each round measures all of them, in the reverse order of the
round before (A B, B A, ...), so that a machine that slows down slows all alike. Then the differences of the pairs
decide, and the times of these rounds stand for those of the probes. They are measured as long as that may save the
training more than it takes (`Limits.training_time`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.confidence import t_quantile
from autotune.memory.calibration import Z
from autotune.outcome import Drift, Lost, Ok, Sample, StepTiming
from autotune.search.comparison import MARGIN, Paired
from autotune.search.context import SearchContext
from autotune.search.drift import FLOOR, PRIOR_WEIGHT
from autotune.search.incumbent import RACED, bound_of, is_bounded
from autotune.search.probe_cost import ProbeCost
from autotune.search.selection import Pairs, Score, fastest, rank
from autotune.techniques.axis import listed
from autotune.techniques.families import title as title_of
from autotune.timing.speed_model import Expected
from autotune.trial import History, RematchFinished, Trial
from autotune.units import format_counted, format_duration

MOST = 3
"""Finalists of a round."""
LEAST = 2
"""Rounds before a difference decides: one in each order."""
ROUNDS = 4
"""Rounds of two finalists, at most."""
MADE = f"no more than {ROUNDS} rounds are made"
PRIOR_ROUNDS = 1
"""Rounds that what is assumed of the spread of a pair counts as much as. With more, rounds that differ by more than the
steps within them say decide too early: of four looks at two candidates that are as fast, 11% with 4, 5% with 1."""


@dataclass(frozen=True)
class Rematch:
    """A trial to be measured again."""

    number: int
    round: int
    """From 1."""
    finalists: tuple[int, ...]
    """The trials of this round, in the order in which they are measured."""


@dataclass(frozen=True)
class Settled:
    """Nothing is to be measured again."""

    why: str
    """What the finals showed, in one sentence; empty where none were needed."""


def next_rematch(
    running: History,
    rematches: Sequence[RematchFinished],
    context: SearchContext,
    drift: Drift,
) -> Rematch | Settled:
    """Return which trial is to be measured again, or what the finals showed.

    `running` holds the trials as rematches and proofs leave them. A round that was begun is ended. One begins while a
    difference from the fastest is neither decided nor surely below MARGIN, ROUNDS are not spent, and what it is
    expected to save in as much training as the run is for is more than the rounds take that could decide it; without
    limits where only trials that ended early are left.
    """
    if context.goal.objective.name not in RACED:
        return Settled("")
    round_ = rematches[-1].round if rematches else 0
    if rematches:
        last = rematches[-1].finalists
        done = {rematch.number for rematch in rematches if rematch.round == round_}
        if (waiting := next((number for number in last if number not in done), None)) is not None:
            return Rematch(waiting, round_, last)
    scores = rank(running, context, drift, pairs_of(running, rematches, context))
    lost = {rematch.number for rematch in rematches if isinstance(rematch.outcome, Lost)}
    if not scores:
        early = [trial for trial in _early(running, context) if trial.number not in lost]
        if not early:
            return Settled("")
        number = min(early, key=lambda trial: _at_least(trial, context, drift)).number
        return Rematch(number, round_ + 1, (number,))
    front = [score for score in fastest(scores) if score.trial.number not in lost]
    if not front:
        return Settled(_result(scores, rematches, ""))
    leader = min(front, key=lambda score: score.seconds)
    close = [
        score
        for score in scores
        if score is not leader
        and score.trial.number not in lost
        and _is_open(leader, score, score in front)
        and _rounds(leader, score.trial) < ROUNDS
    ]
    close.sort(key=lambda score: score.seconds)
    limit = leader.seconds + leader.half_width
    early = [
        trial
        for trial in _early(running, context)
        if trial.number not in lost and _at_least(trial, context, drift) < limit
    ]
    gains = [(_gain(leader, score), score.trial) for score in close]
    gains += [(max(0.0, math.log(limit / _at_least(trial, context, drift))), trial) for trial in early]
    if not gains:
        return Settled(_result(scores, rematches, MADE))
    trials = [leader.trial, *(trial for _, trial in gains[: MOST - 1])]
    training = context.limits.training_time
    costs = _Costs(running, context)
    while len(trials) > 2 and costs.of(trials, leader) > training * max(
        gain for gain, _ in gains[: len(trials) - 1]
    ):
        trials.pop()
    # By the nearest: few steps have wide intervals, and by these the widest would always be worth its rounds.
    saving = gains[0][0] * training
    if (cost := costs.of(trials, leader)) > saving:
        saved = format_duration(saving)
        spent = f"to measure again takes about {format_duration(cost)}, and is expected to save {saved} of"
        why = f"{spent} {format_duration(training)} of training (--training-time)"
        return Settled(_result(scores, rematches, why))
    numbers = [trial.number for trial in trials]
    before = rematches[-1].finalists if rematches else ()
    order = [number for number in reversed(before) if number in numbers]
    order += [number for number in numbers if number not in order]
    return Rematch(order[0], round_ + 1, tuple(order))


def after_finals(history: History, rematches: Sequence[RematchFinished]) -> History:
    """Return the trials still in the running, as their rematches leave them.

    Their times are those of the rematches alone, which all finalists shared; their memory is the fullest that any
    measurement saw. What did not train again is no winner. What was lost in a rematch stays as its probe left it.
    """
    of: dict[int, list[RematchFinished]] = {}
    for rematch in rematches:
        of.setdefault(rematch.number, []).append(rematch)
    remaining = []
    for trial in history:
        outcomes = [rematch.outcome for rematch in of.get(trial.number, ())]
        again = [outcome for outcome in outcomes if isinstance(outcome, Ok)]
        if any(not isinstance(outcome, Ok | Lost) for outcome in outcomes):
            continue
        if not again or not isinstance(trial.outcome, Ok):
            remaining.append(trial)
            continue
        base = again[0] if is_bounded(trial) else trial.outcome
        fullest = max([trial.outcome, *again], key=lambda outcome: outcome.memory.peak())
        timing = pooled([outcome.timing for outcome in again if outcome.timing is not None])
        outcome = base.model_copy(update={"memory": fullest.memory, "timing": timing})
        remaining.append(trial.model_copy(update={"outcome": outcome}))
    return tuple(remaining)


def pooled(timings: Sequence[StepTiming], weights: Sequence[float] | None = None) -> StepTiming:
    """Return the mean of several measurements, equal ones unless weighted; its interval is that of their steps."""
    of_each = [1.0] * len(timings) if weights is None else weights
    total = math.fsum(of_each)

    def mean(samples: Sequence[Sample]) -> Sample:
        each = list(zip(of_each, samples, strict=True))
        widths = [weight * sample.half_width for weight, sample in each if sample.half_width is not None]
        return Sample(
            mean=math.fsum(weight * sample.mean for weight, sample in each) / total,
            half_width=math.hypot(*widths) / total if len(widths) == len(samples) else None,
            count=sum(sample.count for sample in samples),
        )

    waits = [timing.data_wait for timing in timings if timing.data_wait is not None]
    return StepTiming(
        micro_step=mean([timing.micro_step for timing in timings]),
        last_micro_step=mean([timing.last_micro_step for timing in timings]),
        optimizer_step=mean([timing.optimizer_step for timing in timings]),
        data_wait=mean(waits) if len(waits) == len(timings) else None,
    )


def pairs_of(history: History, rematches: Sequence[RematchFinished], context: SearchContext) -> Pairs:
    """Return how trials compared that were measured in the same rounds, each pair in both directions."""
    trials = {trial.number: trial for trial in history}
    measured: dict[int, dict[int, tuple[float, float]]] = {}
    for rematch in rematches:
        trial, outcome = trials.get(rematch.number), rematch.outcome
        if trial is not None and isinstance(outcome, Ok) and outcome.timing is not None:
            steps = context.batches(trial.candidate).steps(trial.candidate.micro_batch)
            count = outcome.timing.last_micro_step.count
            seconds = outcome.timing.global_step(steps)
            error = outcome.timing.interval(steps) / seconds / t_quantile(count - 1) if count > 1 else 0.0
            measured.setdefault(rematch.number, {})[rematch.round] = seconds, error
    found: dict[int, dict[int, Paired]] = {}
    for number, mine in measured.items():
        for other, theirs in measured.items():
            if number != other and (rounds := mine.keys() & theirs.keys()):
                found.setdefault(number, {})[other] = compared(
                    [mine[at] for at in sorted(rounds)], [theirs[at] for at in sorted(rounds)]
                )
    return found


def compared(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> Paired:
    """Return how two candidates compare of which each round gave the seconds, and their standard error as a share.

    The logarithms of the rounds' ratios are taken to be Gaussian. A few tell little of their own spread, so it has a
    prior: what the steps of both measurements explain, and beside it the drift of a quiet machine (`drift.FLOOR`),
    worth PRIOR_ROUNDS (a scaled inverse chi-squared; Gelman et al., Bayesian Data Analysis, 3rd edition, 3.3).
    """
    logs = [math.log(theirs / mine) for (mine, _), (theirs, _) in zip(one, other, strict=True)]
    count, mean = len(logs), statistics.fmean(logs)
    explained = statistics.fmean(a**2 + b**2 for (_, a), (_, b) in zip(one, other, strict=True))
    prior = 2 * (FLOOR / t_quantile(PRIOR_WEIGHT)) ** 2 + explained
    degrees = PRIOR_ROUNDS + count - 1
    seen = math.fsum((value - mean) ** 2 for value in logs)
    variance = (PRIOR_ROUNDS * prior + seen) / degrees
    return Paired(
        log_speedup=mean, half_width=t_quantile(degrees) * math.sqrt(variance / count), rounds=count
    )


def _is_open(leader: Score, other: Score, front: bool) -> bool:
    """Tell whether it is open which of two is faster, and might matter; in `front` nothing is known to be faster."""
    paired = leader.against(other)
    if paired is None:
        share, width = math.log(other.seconds / leader.seconds), leader.apart(other) / leader.seconds
        return front and leader.measured and other.measured and abs(share) + width > MARGIN
    if paired.rounds < LEAST:
        return True
    return abs(paired.log_speedup) <= paired.half_width and not paired.is_equal


def _gain(leader: Score, other: Score) -> float:
    """Return by what share of the leader's time another is expected to be below it; 0 counts where it is not.

    Their difference is taken to be Gaussian, with the interval that is known of it.
    """
    if (paired := leader.against(other)) is not None:
        return Expected(math.exp(paired.log_speedup), paired.half_width / Z).improvement(1.0)
    return Expected(other.seconds, leader.apart(other) / leader.seconds / Z).improvement(leader.seconds)


class _Costs:
    """Seconds that it takes to measure trials again."""

    def __init__(self, running: History, context: SearchContext) -> None:
        self._context = context
        self._probes = ProbeCost(running)

    def of(self, trials: Sequence[Trial], leader: Score) -> float:
        """Return those of as many rounds of these as it takes for a difference from the first to decide."""
        rounds = max(1, LEAST - min(_rounds(leader, trial) for trial in trials[1:]))
        return rounds * math.fsum(map(self._of_one, trials))

    def _of_one(self, trial: Trial) -> float:
        """Return what the trial's probe took; what one is expected to where it ended early, or is of an earlier run."""
        outcome = trial.outcome
        assert isinstance(outcome, Ok)
        if trial.seconds and outcome.timing is not None:
            return trial.seconds
        steps = self._context.batches(trial.candidate).steps(trial.candidate.micro_batch)
        if outcome.timing is not None:
            seconds = outcome.timing.global_step(steps)
        else:
            assert outcome.bound is not None, "a trial that trained has a speed or a bound"
            seconds = outcome.bound.seconds
        return max(trial.seconds, self._probes.seconds(trial.candidate, seconds, steps))


def _rounds(leader: Score, trial: Trial) -> int:
    """Return in how many rounds both were measured."""
    paired = leader.pairs.get(trial.number)
    return paired.rounds if paired else 0


def _early(running: History, context: SearchContext) -> list[Trial]:
    """Return the trials that ended early and fit."""
    return [
        trial
        for trial in running
        if is_bounded(trial)
        and isinstance(trial.outcome, Ok)
        and context.fits(trial.outcome.memory)
        and context.batches(trial.candidate).allows(trial.candidate.micro_batch)
    ]


def _at_least(trial: Trial, context: SearchContext, drift: Drift) -> float:
    bound = bound_of(trial, context, drift)
    assert bound is not None
    return bound.seconds


def _result(scores: Sequence[Score], rematches: Sequence[RematchFinished], spent: str) -> str:
    """Return in words what finals showed; empty where there were none, and none were wanted."""
    front = fastest(scores)
    leader = min(front, key=lambda score: score.seconds)
    lost = {rematch.number for rematch in rematches if isinstance(rematch.outcome, Lost)}
    said = []
    apart: dict[str, list[str]] = {}  # by the reason, whom the leader could not be told apart from
    unmeasured = [
        other
        for other in scores
        if other is not leader
        and other.trial.number not in lost
        and leader.against(other) is None
        and _is_open(leader, other, other in front)
    ]
    for other in scores:
        if (paired := leader.against(other)) is None:
            continue
        by = f"{abs(paired.log_speedup):.1%} ± {paired.half_width:.1%}"
        rounds = f"in {format_counted(paired.rounds, 'round')}"
        if abs(paired.log_speedup) > paired.half_width:
            than = "faster" if paired.log_speedup > 0 else "slower"
            said.append(f"is {by} {than} than probe {other.trial.number} {rounds}")
        elif paired.is_equal:
            said.append(f"is as fast within {MARGIN:.0%} as probe {other.trial.number} {rounds}")
        else:
            why = MADE if paired.rounds >= ROUNDS else spent
            if {leader.trial.number, other.trial.number} & lost:
                why = "one of them was lost"
            apart.setdefault(why, []).append(f"probe {other.trial.number} ({by} {rounds})")
    if spent and unmeasured:
        first, *more = unmeasured
        others = f"{len(unmeasured)} others" if more else f"probe {first.trial.number}"
        apart.setdefault(spent, []).append(others)
    said += [f"could not be told apart from {listed(those)}: {why}" for why, those in apart.items()]
    if said:
        said[0] = f"{_named(leader)} {said[0]}"
    fallen = [rematch for rematch in rematches if not isinstance(rematch.outcome, Ok)]
    said += [
        f"probe {rematch.number} ended in {rematch.outcome.kind} when measured again" for rematch in fallen
    ]
    return "; ".join(said)


def _named(score: Score) -> str:
    trial = score.trial
    return f"probe {trial.number} ({title_of(trial.candidate)}, micro-batch {trial.candidate.micro_batch})"
