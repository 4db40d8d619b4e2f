"""Choose among trials: by a run's objective the best that fits, judged by a whole global step."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from autotune.accumulation import Accumulation
from autotune.objective import Objective
from autotune.outcome import ChosenBy, Drift, Ok, Oom, StepTiming
from autotune.search.comparison import (
    Joules,
    Paired,
    apart,
    fast_enough,
    speed_share,
    undominated,
)
from autotune.search.context import SearchContext
from autotune.search.drift import drift_of
from autotune.search.layers import in_layers
from autotune.specs import ModelFacts
from autotune.timing.calibration import SpeedCalibration, SpeedSample
from autotune.trial import History, Trial

Pairs = Mapping[int, Mapping[int, Paired]]
"""How trials compared in alternation, by the numbers of the one and the other."""
SPEED = Objective()
"""Tokens per second, which decides unless a run asks for something else."""
CLOSE = 0.1
"""By what share more than the fastest one's time something may have measured, and still be chosen for a smaller
prediction or peak, where intervals do not tell the two apart. Beyond it the measured time is the better guess."""


@dataclass(frozen=True)
class Score:
    """The speed of one trial at the target global batch."""

    trial: Trial
    accumulation: Accumulation
    seconds: float
    """Of a whole global step."""
    half_width: float
    """Of the 95% interval of `seconds`, drift between measurements included."""
    tokens_per_second: float
    """Over all devices."""
    interval: float
    """Half-width of the 95% interval of `tokens_per_second`."""
    expected: float | None = None
    """Seconds of the global step as predicted, corrected by what was measured; None without a prediction."""

    joules: Joules | None = None
    """Of a whole global step, on all devices; None where they were not measured."""
    pairs: Mapping[int, Paired] = field(default_factory=dict)
    """How it compared with other trials in alternation, by their numbers."""

    @property
    def peak(self) -> int:
        """Bytes that count against the budget."""
        assert isinstance(self.trial.outcome, Ok)
        return self.trial.outcome.memory.peak()

    @property
    def measured(self) -> bool:
        """Whether a probe trained, and did not only predict."""
        assert isinstance(self.trial.outcome, Ok)
        assert self.trial.outcome.timing is not None
        return self.trial.outcome.timing.last_micro_step.count > 0

    def against(self, other: object) -> Paired | None:
        """Return how it compared with another trial in alternation."""
        return self.pairs.get(other.trial.number) if isinstance(other, Score) else None

    def apart(self, other: Score) -> float:
        """Return the half-width (seconds) of the 95% interval of the difference; 0 between predictions."""
        return apart(self, other)


@dataclass(frozen=True)
class Choice:
    """The winner among trials, and what it could not be told from."""

    winner: Score
    alternatives: tuple[Score, ...]
    """What nothing is known to be better than either, by the run's objective."""
    by: ChosenBy
    speed_share: tuple[float, float] = (1.0, 0.0)
    """The winner's speed as a share of the fastest one's that fits, with the half-width of its 95% interval."""


def score(trial: Trial, context: SearchContext, drift: Drift | None = None) -> Score:
    """Compose the speed of a trial that fitted and was measured: t = (accum - 1) t_micro + t_last + t_optimizer."""
    assert isinstance(trial.outcome, Ok)
    assert trial.outcome.timing is not None, "a bound is no speed"
    accumulation = context.batches(trial.candidate).accumulation(trial.candidate.micro_batch)
    timing = trial.outcome.timing
    seconds, speed, interval = throughput(timing, accumulation, drift)
    energy, joules = trial.outcome.energy, None
    if energy is not None:
        spent = energy.global_step(accumulation.steps)
        noise = math.hypot(energy.interval(accumulation.steps), spent * (drift.share if drift else 0.0))
        # Of a candidate that trains on one device of several, as each of them would.
        alike = 1 if energy.counter == "rapl" or trial.candidate.distributed else context.goal.gpus
        joules = Joules(alike * spent, alike * noise)
    return Score(trial, accumulation, seconds, interval * seconds / speed, speed, interval, joules=joules)


def throughput(
    timing: StepTiming, accumulation: Accumulation, drift: Drift | None = None
) -> tuple[float, float, float]:
    """Return seconds of a global step, tokens per second, and the half-width of the latter's interval.

    The interval of one measurement covers its own steps; with `drift`, what lies between measurements too.
    """
    seconds = timing.global_step(accumulation.steps)
    speed = accumulation.effective / seconds
    share = timing.interval(accumulation.steps) / seconds
    measured = timing.last_micro_step.count > 0
    return seconds, speed, speed * math.hypot(share, drift.share if drift and measured else 0.0)


def rank(
    history: History, context: SearchContext, drift: Drift | None = None, pairs: Pairs | None = None
) -> list[Score]:
    """Return every trial that leaves the headroom free and whose speed was measured, best by the objective first.

    The fastest is the one whose global step takes least time, not the one with most tokens a second: tokens
    beyond the target were not asked for. First come those that no other is known to be better than, beyond what their
    intervals explain, then those that only these are better than, and so on. Among those that cannot be told apart the
    order is that of `chosen_by`. What is too slow for the objective comes last, the fastest first. `drift` is the
    run's; where it is not given, it is told from the history. `pairs` are what finals showed.
    """
    objective = context.goal.objective
    fitting = [
        trial
        for trial in history
        if isinstance(trial.outcome, Ok)
        and trial.outcome.timing is not None
        and context.fits(trial.outcome.memory)
        and context.batches(trial.candidate).allows(trial.candidate.micro_batch)
    ]
    drift = drift or drift_of(history, (), context)
    expected = _expected(history, context)
    known = pairs or {}
    scores = [
        replace(
            score(trial, context, drift),
            expected=expected.get(trial.number),
            pairs=known.get(trial.number, {}),
        )
        for trial in fitting
    ]
    enough = fast_enough(scores, objective)
    chosen_among = {id(entry) for entry in enough}
    too_slow = [entry for entry in scores if id(entry) not in chosen_among]
    return [*_ordered(enough, objective), *_ordered(too_slow, SPEED)]


def _ordered(scores: Sequence[Score], objective: Objective) -> list[Score]:
    """Return these layer by layer, each in the order of what its members are told apart by."""
    return [
        entry
        for layer in in_layers(scores, objective)
        for entry in sorted(layer, key=_order(layer, objective))
    ]


def _order(front: Sequence[Score], objective: Objective) -> Callable[[Score], tuple[float, ...]]:
    """Return what orders these scores, which the objective does not tell apart."""
    if objective.name in {"memory", "energy"}:
        return lambda s: (s.seconds, s.peak, s.trial.number)

    close = _close(front)
    members = {id(entry) for entry in close}
    by = chosen_by(front, objective)

    def order(entry: Score) -> tuple[float, ...]:
        if id(entry) not in members:
            return 1.0, entry.seconds, entry.peak, entry.trial.number
        match by:
            case "finals":
                first = -_lead(entry, close)
            case "prediction":
                first = entry.expected or 0.0
            case _:
                first = 0.0
        return 0.0, first, entry.peak, entry.seconds, entry.trial.number

    return order


def _lead(entry: Score, close: Sequence[Score]) -> float:
    """Return by what share one was faster than the others in rounds that measured both, all together."""
    rounds = [entry.against(other) for other in close if other is not entry]
    return math.fsum(paired.log_speedup for paired in rounds if paired is not None)


def _close(front: Sequence[Score]) -> list[Score]:
    """Return those that measured nearly as fast as the fastest of them."""
    quickest = min(entry.seconds for entry in front)
    return [entry for entry in front if entry.seconds <= (1 + CLOSE) * quickest]


def fastest(scores: Sequence[Score]) -> list[Score]:
    """Return those that no other is known to be faster than, in their order."""
    return undominated(scores, SPEED)


def foremost(ranked: Sequence[Score], objective: Objective) -> list[Score]:
    """Return those fast enough for an objective that no other of these is known to be better than, in their order."""
    return undominated(fast_enough(ranked, objective), objective)


def chosen_by(front: Sequence[Score], objective: Objective) -> ChosenBy:
    """Return what the order among these follows.

    One alone is what the objective compares. By memory and energy the faster comes first; by speed and cost, of those
    that measured nearly as fast as the fastest (`CLOSE`), the one that was faster in the finals, where all were in the
    same rounds: then their difference is known better than any that is predicted. Else, and where the rounds showed
    them to be equal, the smaller predicted time, where all have one, and else the smaller peak. Of the others the
    faster.
    """
    if objective.name in {"memory", "energy"}:
        compared: ChosenBy = "memory" if objective.name == "memory" else "energy"
        return compared if len(front) == 1 else "speed"
    close = _close(front)
    if len(close) == 1:
        return "speed"
    rounds = [one.against(other) for one, other in combinations(close, 2)]
    if None not in rounds and not all(paired is not None and paired.is_equal for paired in rounds):
        return "finals"
    return "prediction" if all(entry.expected is not None for entry in close) else "memory"


def choose(ranked: Sequence[Score], proven: Collection[int] = (), objective: Objective = SPEED) -> Choice:
    """Return the winner of a ranking by an objective.

    Among what cannot be told from the best, one of the `proven` trials comes first.
    """
    front = foremost(ranked, objective)
    held = next((entry for entry in front if entry.trial.number in proven), None)
    winner = held or front[0]
    by = chosen_by(front, objective) if winner is front[0] else "proof"
    others = tuple(entry for entry in front if entry is not winner)
    return Choice(winner, others, by, speed_share(winner, ranked))


def _expected(history: History, context: SearchContext) -> dict[int, float]:
    """Return the predicted seconds of a global step by number of trial, corrected by all that the history measured."""
    known = [
        (trial, trial.prediction.roofline)
        for trial in history
        if isinstance(trial.outcome, Ok)
        and trial.prediction is not None
        and trial.prediction.roofline is not None
    ]
    calibration = SpeedCalibration(
        [
            SpeedSample(trial.candidate.rung().key(), raw, trial.outcome.timing)
            for trial, raw in known
            if isinstance(trial.outcome, Ok) and trial.outcome.timing is not None
        ]
    )
    return {
        trial.number: calibration.correct(trial.candidate.rung().key(), raw).global_step(
            context.batches(trial.candidate).steps(trial.candidate.micro_batch)
        )
        for trial, raw in known
        if context.batches(trial.candidate).allows(trial.candidate.micro_batch)
    }


def missing(history: History, context: SearchContext) -> tuple[Trial, int | None] | None:
    """Return the trial that came nearest to fitting, and how many bytes it lacked at least.

    Nearest is what was predicted to take least. Without predictions it is the last that was tried, which a graph makes
    more sparing than those before it: what was refused says little, for it may have been refused early. The bytes are
    a lower bound: more may have been needed after the request that was refused. None for them where the verdict does
    not say; None altogether where no trial failed for memory.
    """
    lacking: list[tuple[Trial, int | None]] = []
    for trial in history:
        match trial.outcome:
            case Oom(requested=int(requested), free=int(free)):
                lacking.append((trial, max(0, requested - free) + context.budget - context.usable))
            case Oom():
                lacking.append((trial, None))
            case Ok(memory=memory) if not context.fits(memory):
                lacking.append((trial, memory.peak() - context.usable))
            case _:
                pass
    if not lacking:
        return None
    predicted = [one[0].prediction.peak for one in lacking if one[0].prediction is not None]
    if len(predicted) < len(lacking):
        return lacking[-1]
    return lacking[min(range(len(lacking)), key=lambda index: (predicted[index], -index))]


def flops_per_token(facts: ModelFacts, seq_len: int) -> float:
    """Return the FLOPs of forward and backward for one token: 3 x (2 N + 4 L d s).

    N are the parameters that a token meets, L layers of width d, s the sequence length; backward counts twice
    the forward. This is the formula of MosaicML's llm-foundry benchmarks (causal masking is not discounted,
    recomputation is not counted), equal to 6 N + 12 L d s of Chowdhery et al., PaLM, 2022, appendix B.
    """
    return 3 * (2 * facts.active_parameters + 4 * facts.layers * facts.hidden * seq_len)


def mfu(tokens_per_second: float, facts: ModelFacts, seq_len: int, peak_flops: float, gpus: int) -> float:
    """Return model FLOPs utilization: useful FLOP/s over the peak of all devices, between 0 and 1."""
    return tokens_per_second * flops_per_token(facts, seq_len) / (peak_flops * gpus)
