"""How long to measure: until the confidence interval of a global step's time is narrow enough."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from autotune.outcome import EnergyCounter, StepEnergy, StepParts, StepTiming
from autotune.sampling import summarize
from autotune.worker.measuring.steps import StepTimes

ENOUGH = 0.03
"""Half-width of the 95% interval, as a share of the mean, at which sampling stops."""
KEPT = 32
"""Step times that a measurement keeps, at most."""


def timing(samples: Sequence[StepTimes], trimmed: float = 0.0, alike: int = 0) -> StepTiming:
    """Return the parts of a global step from repeated measurements, all of the same number of micro-steps.

    Where the last micro-step is the only one, it stands for the others too. `alike` is how many micro-steps each step
    had, where the last does nothing that the others do not (reduce gradients): then each of two is a sample of the
    same, and so is the mean of more, and the time of both kinds is told from all of them. `trimmed` is for steps that
    all do the same work: where batches differ, the slow ones are training's own.
    """
    last = summarize([parts.last_micro_step for parts in samples], trimmed)
    others = [parts.micro_step for parts in samples if parts.micro_step is not None]
    if alike and others:
        pairs = [(parts.micro_step or 0.0, parts.last_micro_step) for parts in samples]
        of_each = [(other * (alike - 1) + end) / alike for other, end in pairs]
        last = summarize([part for pair in pairs for part in pair] if alike == 2 else of_each, trimmed)
    return StepTiming(
        micro_step=summarize(others, trimmed) if others and not alike else last,
        last_micro_step=last,
        optimizer_step=summarize([parts.optimizer_step for parts in samples], trimmed),
        data_wait=summarize([parts.data_wait for parts in samples], trimmed),
    )


def energy(samples: Sequence[StepTimes], counter: EnergyCounter) -> StepEnergy:
    """Return the joules of the parts of a global step from repeated measurements, as `timing` the seconds.

    Nothing is trimmed: a counter that is brought up to date now and then gives one part too much what it gave the one
    before too little, and the mean of all is right.
    """
    parts = [sample.energy for sample in samples if sample.energy is not None]
    last = summarize([part.last_micro_step for part in parts])
    others = [part.micro_step for part in parts if part.micro_step is not None]
    return StepEnergy(
        counter=counter,
        micro_step=summarize(others) if others else last,
        last_micro_step=last,
        optimizer_step=summarize([part.optimizer_step for part in parts]),
    )


def step_seconds(samples: Sequence[StepTimes], micro_steps: int) -> tuple[float, ...]:
    """Return the seconds of each step, in order; of more than KEPT, means of as many steps each."""
    seconds = [
        (micro_steps - 1) * (parts.micro_step or 0.0) + parts.last_micro_step + parts.optimizer_step
        for parts in samples
    ]
    together = max(1, -(-len(seconds) // KEPT))
    whole = len(seconds) - len(seconds) % together
    return tuple(statistics.fmean(seconds[at : at + together]) for at in range(0, whole, together))


def narrow(
    samples: Sequence[StepTimes], accumulation_steps: int, trimmed: float = 0.0, alike: int = 0
) -> bool:
    """Return whether the time of a whole global step is known well enough, and its energy, where that is measured."""
    if len(samples) < 2:
        return False
    known: list[StepParts] = [timing(samples, trimmed, alike)]
    if samples[0].energy is not None:
        known.append(energy(samples, "nvml"))
    return all(
        parts.interval(accumulation_steps) <= ENOUGH * parts.global_step(accumulation_steps)
        for parts in known
    )


def optimizer_known(samples: Sequence[StepTimes], accumulation_steps: int) -> bool:
    """Return whether the optimizer's part is known to ENOUGH of a whole global step: a small part is soon known."""
    known = timing(samples)
    width = known.optimizer_step.half_width
    return width is not None and width <= ENOUGH * known.global_step(accumulation_steps)
