"""How far apart two measurements of one candidate lie, beyond what the steps within each of them show. Pure.

The steps of a probe share whatever the machine is like in these seconds (its clock, its neighbours, where its memory
came to lie), so their interval says nothing about a probe a minute later. What a run recorded tells of that: the first
half of each measurement against its second, and each rematch and proof against the probe that it repeats.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence

from autotune.confidence import t_quantile
from autotune.outcome import Drift, Ok
from autotune.search.context import SearchContext
from autotune.trial import History, ProofFinished, RematchFinished

FLOOR = 0.02
"""Half-width of the 95% interval of one measurement on a quiet machine, as a share: what is taken before a run has
shown anything, and never less. An assumption: `benchmarks/repeatability.py` gave 25 to 37% on a virtual machine that
was not quiet (docs/log.md), which a run there finds by itself; on GPUs nobody measured it yet."""
PRIOR_WEIGHT = 4
"""Comparisons that FLOOR counts as much as: a run that shows more drift is believed after a few probes."""


def drift_of(
    history: History, again: Iterable[ProofFinished | RematchFinished], context: SearchContext
) -> Drift:
    """Return the drift between measurements in a run, from all that it measured.

    A comparison of two measurements estimates the variance of one: half the square of the logarithm of their ratio.
    For halves what the spread of their own steps explains is taken off. FLOOR is a prior, worth PRIOR_WEIGHT of them.
    """
    halves = [value for trial in history if (value := _between_halves(trial.outcome)) is not None]
    repeats: list[float] = []
    trials = {trial.number: trial for trial in history}
    for proof in again:
        if (value := _between_halves(proof.outcome)) is not None:
            halves.append(value)
        trial = trials.get(proof.number)
        if trial is None or not isinstance(trial.outcome, Ok) or not isinstance(proof.outcome, Ok):
            continue
        if trial.outcome.timing is None or proof.outcome.timing is None:
            continue
        steps = context.batches(trial.candidate).steps(trial.candidate.micro_batch)
        first, second = (timing.global_step(steps) for timing in (trial.outcome.timing, proof.outcome.timing))
        if first > 0 and second > 0:
            repeats.append(math.log(second / first) ** 2 / 2)
    count = PRIOR_WEIGHT + len(halves) + len(repeats)
    seen = max(0.0, math.fsum(halves)) + math.fsum(repeats)
    deviation = math.sqrt((PRIOR_WEIGHT * (FLOOR / t_quantile(PRIOR_WEIGHT)) ** 2 + seen) / count)
    share = max(FLOOR, t_quantile(count) * deviation)
    return Drift(share=share, floor=FLOOR, halves=len(halves), repeats=len(repeats))


def _between_halves(outcome: object) -> float | None:
    """Return the variance that two halves of a measurement tell of, less what their steps' spread explains."""
    if not isinstance(outcome, Ok) or outcome.timing is None:
        return None
    steps = outcome.step_seconds
    if len(steps) < 2 or min(steps) <= 0:
        return None
    explained = _variance(steps) if len(steps) > 2 else _of_micro_steps(outcome)
    if explained is None:
        return None
    half = len(steps) // 2
    first, second = statistics.fmean(steps[:half]), statistics.fmean(steps[-half:])
    return math.log(second / first) ** 2 / 2 - explained / half


def _of_micro_steps(outcome: Ok) -> float | None:
    """Return the variance of one step's time as its micro-steps tell it; None where they are no samples of their own.

    Two steps have only one difference, which is what is to be explained.
    """
    assert outcome.timing is not None
    micro = outcome.timing.micro_step
    if micro.half_width is None or micro.count <= len(outcome.step_seconds) or micro.mean <= 0:
        return None
    deviation = micro.half_width * math.sqrt(micro.count) / t_quantile(micro.count - 1) / micro.mean
    return deviation**2 * len(outcome.step_seconds) / micro.count


def _variance(steps: Sequence[float]) -> float:
    """Return the variance of one step's time from the next, relative to its mean; a slow drift adds nothing to it."""
    mean = statistics.fmean(steps)
    return statistics.fmean((b - a) ** 2 for a, b in itertools.pairwise(steps)) / 2 / mean**2
