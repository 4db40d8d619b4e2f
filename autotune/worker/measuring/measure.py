"""A `train` probe: measure speed and memory of a candidate over as few steps as give sure numbers."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from autotune.outcome import Memory, Ok
from autotune.probe.protocol import ProbeRequest
from autotune.racing import SpeedBound, cannot_win, speed_bound, warm_up_bound
from autotune.sampling import TRIMMED
from autotune.worker.measuring.attention_kernel import AttentionKernels, compiled_attention
from autotune.worker.measuring.communication import listen
from autotune.worker.measuring.energy_meter import energy_meter
from autotune.worker.measuring.layer_drop import EveryLayerKept, skips_layers
from autotune.worker.measuring.memory_breakdown import (
    Observer,
    breakdown,
    gradient_bytes,
    parameter_bytes,
    state_bytes,
)
from autotune.worker.measuring.phases import Phases
from autotune.worker.measuring.statistics import energy, narrow, optimizer_known, step_seconds, timing
from autotune.worker.measuring.steps import MICRO_STEPS, Stepper, StepTimes
from autotune.worker.training import Training, no_reduction

MINIMUM = 3
"""Measured steps, at least: the interval of two is three times as wide (Student's t 12.7 against 4.3)."""
MINIMUM_ALIKE = 2
"""The same where every micro-step is a sample: two steps have four (t 3.2). Of the optimizer's part they have two, so
that must be little of a global step."""
LEAST_SECONDS = 0.5
"""Of measured steps, before their time is taken for known: within tenths of a second the steps of a small model agree
among themselves, and the next tenths may all be slower."""


def measure(request: ProbeRequest, training: Training, phases: Phases, warmed_up: Callable[[], None]) -> Ok:
    """Warm up, then run steps until their time is known within 3%, or the request's limits are reached.

    Where the request says what is to be beaten, they end as soon as it is sure that they do not (`speed_bound`), or
    are not begun (`hopeless`).

    `warmed_up` is called once, before the first step that is timed. Raises what training raises.
    """
    stepper = Stepper(training, request.candidate.micro_batch, phases)
    micro_steps = min(request.accumulation_steps, MICRO_STEPS)
    observer = Observer(training)
    compiled = request.candidate.compile != "none"
    warm = warm_up(stepper, micro_steps, first=1, observer=observer, compiled=compiled)
    warmed_up()
    samples: Sequence[StepTimes] = ()
    if (bound := hopeless(stepper, request, micro_steps, warm)) is None:
        if request.energy:
            stepper.energy = energy_meter(training.device)
        deadline = time.perf_counter() + request.sample_seconds
        samples, bound = sample(stepper, request, micro_steps, deadline)
    phases.detailed = True
    outcome = report(request, stepper, samples, micro_steps, observer, bound)
    if bound is not None:
        return outcome
    # Last: what the profiler takes is none of the training's.
    found: dict[str, object] = {"communication": listen(request, stepper, micro_steps)}
    if compiled:
        found["attention_kernels"] = compiled_attention(training.attention)
    return outcome.model_copy(update=found)


def warm_up(
    stepper: Stepper, micro_steps: int, first: int, observer: Observer, compiled: bool = False
) -> tuple[StepTimes, StepTimes]:
    """Run two optimizer steps, of `first` and of `micro_steps` micro-steps: the first creates the optimizer's state.

    Batches are the largest of a user's dataset, and no layer is skipped (`EveryLayerKept`), so that memory is known
    whatever steps follow. The second is looked at phase by phase, which slows it: so that is not done in steps that
    are timed. Likewise the kernels of attention are looked for in the first, unless it is `compiled`; then what the
    compiler takes is left out of memory. Returns the parts of both.
    """
    phases, scaling = stepper.phases, stepper.training.scaling
    stepper.heaviest = True
    keeps = not compiled and skips_layers(stepper.training.model)
    with EveryLayerKept() if keeps else nullcontext():
        # The compiler would take the one that looks for a part of the model.
        with nullcontext() if compiled else AttentionKernels() as seen:
            made_state = stepper.step(first)
        stepper.attention_kernels = seen.kernels if seen else ()
        # With gradients that overflow the step is left out, and so is the state: its scale falls until one is taken.
        while scaling is not None and scaling.skipped == phases.step:
            made_state = stepper.step(first)
        if compiled:
            forget_compiler(stepper)
        phases.on_end = observer.look
        whole = stepper.step(micro_steps)
    phases.on_end = None
    phases.detailed = False
    if compiled:  # what the second step's shapes made it compile
        forget_compiler(stepper)
    stepper.heaviest = False
    stepper.drain()
    return made_state, whole


def hopeless(
    stepper: Stepper, request: ProbeRequest, micro_steps: int, warm: Sequence[StepTimes]
) -> SpeedBound | None:
    """Return a bound where the steps of the warm-up, `warm`, tell that the request's incumbent is surely faster.

    That saves every step that is measured, of which each may take a minute. None where they do not tell: where the
    last of them took less than LEAST_SECONDS, a compiler compiled in them, the batches were the heaviest of a
    dataset, or the device runs behind its host, which waits for it in every phase of the warm-up.
    """
    training = stepper.training
    like_others = training.loader is None and not stepper.phases.meter.asynchronous
    if request.to_beat is None or not like_others or request.candidate.compile != "none":
        return None
    bound = warm_up_bound(warm, request.accumulation_steps, request.to_beat)
    (seconds,) = step_seconds(warm[-1:], micro_steps)
    beaten = seconds >= LEAST_SECONDS and cannot_win(bound)
    # The slowest rank's time is that of all, and a rank that stops alone leaves the others waiting.
    return bound if training.ranks.largest(beaten) else None


def forget_compiler(stepper: Stepper) -> None:
    """Leave the compiler out of the training's memory: its peak in the first steps, and what it keeps of them.

    How much that is depends on whether it found its code in its cache, which no two launches have alike. What has to
    fit still counts it.
    """
    training, phases = stepper.training, stepper.phases
    gc.collect()
    phases.meter.disown(parameter_bytes(training) + gradient_bytes(training) + state_bytes(training))
    phases.training_peak = 0


def sample(
    stepper: Stepper, request: ProbeRequest, micro_steps: int, deadline: float
) -> tuple[list[StepTimes], SpeedBound | None]:
    """Run measured steps until their time is known well enough, there are enough, or the deadline passed.

    It is known after LEAST_SECONDS of steps at the earliest. After as many they may also end because the request's
    incumbent is surely faster, and then their bound is returned with them. By then the memory's peak has been: the
    warm-up's step left the optimizer's state, and a whole one followed. Where batches differ, that takes as many steps
    as any measurement. The slowest rank's time is that of all, so each of them may end the probe.
    """
    ranks, same_batches = stepper.training.ranks, stepper.training.loader is None
    alike = micro_steps_alike(stepper, micro_steps)
    minimum = MINIMUM_ALIKE if alike > 1 and same_batches else MINIMUM
    whole = 1 if same_batches else minimum
    samples: list[StepTimes] = []
    measured = 0.0

    def enough() -> bool:
        few = len(samples) < MINIMUM and not optimizer_known(samples, request.accumulation_steps)
        known = not few and (
            len(samples) >= request.sample_steps
            or time.perf_counter() >= deadline
            or (
                measured >= LEAST_SECONDS
                and narrow(samples, request.accumulation_steps, trimmed(stepper), alike)
            )
        )
        return bool(ranks.largest(known))  # a rank that stops alone leaves the others waiting

    while True:
        samples.append(stepper.step(micro_steps))
        measured += step_seconds(samples[-1:], micro_steps)[0]
        if len(samples) >= minimum and enough():
            return samples, None
        if request.to_beat is not None and whole <= len(samples):
            bound = speed_bound(samples, request.accumulation_steps, request.to_beat)
            beaten = measured >= LEAST_SECONDS and cannot_win(bound)
            if bound is not None and ranks.largest(beaten):
                return samples, bound


def trimmed(stepper: Stepper) -> float:
    """Return the share of outliers that means of this training's steps leave out: none where its batches differ."""
    return TRIMMED if stepper.training.loader is None else 0.0


def micro_steps_alike(stepper: Stepper, micro_steps: int) -> int:
    """Return how many micro-steps a step has, where the last does nothing that the others do not; 0 where it does."""
    return micro_steps if stepper.training.reduction is no_reduction else 0


def report(
    request: ProbeRequest,
    stepper: Stepper,
    samples: Sequence[StepTimes],
    micro_steps: int,
    observer: Observer,
    bound: SpeedBound | None = None,
) -> Ok:
    """Put together what was measured; with a `bound` the samples are too few to tell a speed.

    `memory.allocated` and its breakdown are the peak of the training steps; `reserved` and `device_peak` are
    those of the process from its start until now, because that is what has to fit.
    """
    phases, training = stepper.phases, stepper.training
    reports = phases.reports()
    forward_end = next(entry.end for entry in reports if entry.phase == "forward")
    peaks = phases.meter.peaks()
    phases.counted_until = time.monotonic()
    return Ok(
        memory=Memory(
            allocated=phases.training_peak,
            reserved=peaks.reserved,
            device_peak=peaks.device,
            budget=request.budget,
            baseline=phases.meter.baseline,
            allocator_retries=peaks.allocator_retries,
            breakdown=breakdown(training, observer, forward_end, phases.training_peak),
        ),
        timing=timing(samples, trimmed(stepper), micro_steps_alike(stepper, micro_steps))
        if bound is None
        else None,
        bound=bound,
        step_seconds=step_seconds(samples, micro_steps),
        energy=energy(samples, stepper.energy.counter) if stepper.energy is not None else None,
        phases=reports,
        losses=tuple(stepper.losses),
        accumulation_steps=micro_steps,
        attention=training.attention,
        attention_kernels=stepper.attention_kernels,
        loader_bytes=training.loader.host_bytes() if training.loader is not None else None,
        skipped_steps=training.scaling.skipped if training.scaling is not None else 0,
    )
