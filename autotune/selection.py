"""Choose among trials: the fastest that fits, judged by a whole global step."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.accumulation import Accumulation
from autotune.outcome import Ok, Oom, StepTiming
from autotune.specs import ModelFacts
from autotune.strategies.decision import Scope
from autotune.trial import History, Trial


@dataclass(frozen=True)
class Score:
    """The speed of one trial at the target global batch."""

    trial: Trial
    accumulation: Accumulation
    seconds: float
    """Of a whole global step."""
    tokens_per_second: float
    """Over all devices."""
    interval: float
    """Half-width of the 95% interval of `tokens_per_second`."""


def score(trial: Trial, scope: Scope) -> Score:
    """Compose the speed of a trial that fitted: t = (accum - 1) t_micro + t_last + t_optimizer."""
    assert isinstance(trial.outcome, Ok)
    accumulation = scope.of_rung(trial.candidate).accumulation(trial.candidate.micro_batch)
    seconds, speed, interval = throughput(trial.outcome.timing, accumulation)
    return Score(trial, accumulation, seconds, speed, interval)


def throughput(timing: StepTiming, accumulation: Accumulation) -> tuple[float, float, float]:
    """Return seconds of a global step, tokens per second, and the half-width of the latter's interval."""
    seconds = timing.global_step(accumulation.steps)
    speed = accumulation.effective / seconds
    return seconds, speed, speed * timing.interval(accumulation.steps) / seconds


def rank(history: History, scope: Scope) -> list[Score]:
    """Return every trial that leaves the headroom free, fastest first; ties go to the smaller peak.

    The fastest is the one whose global step takes least time, not the one with most tokens a second: tokens
    beyond the target were not asked for.
    """
    scores = [
        score(trial, scope)
        for trial in history
        if isinstance(trial.outcome, Ok)
        and scope.fits(trial.outcome.memory)
        and scope.of_rung(trial.candidate).allows(trial.candidate.micro_batch)
    ]
    return sorted(scores, key=lambda s: (s.seconds, _peak(s.trial), s.trial.number))


def missing(history: History, scope: Scope) -> tuple[Trial, int | None] | None:
    """Return the trial that came nearest to fitting, and how many bytes it lacked at least.

    The bytes are a lower bound: more may have been needed after the request that was refused. None for them
    where the verdict does not say; None altogether where no trial failed for memory.
    """
    lacking: list[tuple[Trial, int | None]] = []
    for trial in history:
        match trial.outcome:
            case Oom(requested=int(requested), free=int(free)):
                lacking.append((trial, max(0, requested - free) + scope.budget - scope.usable))
            case Oom():
                lacking.append((trial, None))
            case Ok(memory=memory) if not scope.fits(memory):
                lacking.append((trial, memory.peak() - scope.usable))
            case _:
                pass
    # The last rung tried is the one that needs least; bytes of earlier rungs stop at an earlier phase.
    return lacking[-1] if lacking else None


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


def _peak(trial: Trial) -> int:
    assert isinstance(trial.outcome, Ok)
    return trial.outcome.memory.peak()
