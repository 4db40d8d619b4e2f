"""What a user's command was seen to measure: its facts, memory and time, out of what the watch wrote. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.candidate import DeviceKind, Precision
from autotune.outcome import Breakdown, Memory, Ok, StepTiming
from autotune.sampling import TRIMMED, summarize
from autotune.script.watched import Watched, WatchedLaunch, WatchedStep
from autotune.specs import ModelFacts

WARM_UP = 2
"""Optimizer steps that are no sample (`watch/stopping.py` has the same)."""


@dataclass(frozen=True)
class Told:
    """What a launch of the command was told, and under what it ran."""

    micro_batch: int
    accumulation: int
    world: int
    steps: int
    """Optimizer steps that are wanted, at least."""
    budget: int
    """Bytes of each rank."""
    kind: DeviceKind
    data_limit: int | None
    tokens_per_sample: int | None = None
    """Tokens that a row counts for; None where nothing was said of that."""
    device_peak: int | None = None
    """What the device itself saw, in bytes (NVML)."""


def facts(seen: WatchedLaunch) -> ModelFacts | None:
    """Return what a first launch tells of the model and its batches; None where no batch was seen.

    It need not have trained to its end: one batch is enough, also where memory ran out on it.
    """
    for one in seen.ranks:
        taken = [(step.samples, step.tokens) for step in one.records] + [
            (each[0], each[1]) for each in one.open
        ]
        tokens = next((tokens // samples for samples, tokens in taken if samples and tokens), None)
        if tokens is not None:
            return ModelFacts(
                task="custom", model_class=one.model or "", parameters=one.parameters,
                trainable_parameters=one.trainable, active_parameters=one.parameters, layers=0, hidden=0,
                block_class=None, blocks=0, tokens_per_sample=tokens, precision=_precision(one),
                torch_version=one.torch or "", transformers_version=one.transformers or "",
            )  # fmt: skip
    return None


def _precision(one: Watched) -> Precision | None:
    types, autocast = one.number_types.parameters, one.number_types.autocast
    if types == ("float32",):
        names: dict[str | None, Precision] = {None: "fp32", "bfloat16": "bf16", "float16": "fp16"}
        return names.get(autocast)
    return "bf16-pure" if types == ("bfloat16",) else None


def memories(told: Told, seen: WatchedLaunch) -> tuple[Memory, ...]:
    """Return the memory of each process that imported torch."""
    return tuple(_memory(told, seen, one) for one in seen.processes if one.torch is not None)


def trained(told: Told, seen: WatchedLaunch) -> Ok:
    """Return the measurement: the memory of the rank with the largest peak, the time of the slowest."""
    ranks = seen.ranks
    memories = [_memory(told, seen, one) for one in ranks]
    fullest = max(range(len(ranks)), key=lambda place: memories[place].peak())
    peaks = tuple(memory.peak() for memory in memories) if len(ranks) > 1 else ()
    slowest = max(ranks, key=lambda one: math.fsum(step.seconds for step in _samples(one)))
    losses = tuple(step.loss for step in ranks[0].records if step.loss is not None)
    loading = [one.loaders.bytes for one in ranks if one.loaders is not None]
    return Ok(
        memory=memories[fullest].model_copy(update={"by_rank": peaks}), timing=_timing(_samples(slowest)), phases=(),
        step_seconds=tuple(step.seconds for step in _samples(slowest))[:32], losses=losses,
        optimizer_steps=min(one.steps for one in ranks), accumulation_steps=told.accumulation,
        loader_bytes=sum(loading) if loading else None,
    )  # fmt: skip


def _memory(told: Told, seen: WatchedLaunch, one: Watched) -> Memory:
    memory, parts = one.memory, one.parts
    if memory.cuda is not None:
        allocated, reserved = memory.cuda.peak, memory.cuda.reserved
        device, baseline = max(told.device_peak or 0, reserved), 0
    else:
        sampled = seen.end.data.get(str(one.pid)) if seen.end is not None else None
        allocated, device, baseline = max(0, memory.peak - memory.baseline), memory.peak, memory.baseline
        reserved = max(memory.data, sampled.peak if sampled is not None else 0)
    held = parts.parameters + parts.gradients + parts.optimizer_state
    activations = max(0, min(one.activations, allocated) - parts.parameters - parts.optimizer_state)
    return Memory(
        allocated=allocated, reserved=reserved, device_peak=device, budget=told.budget, baseline=baseline,
        allocator_retries=memory.cuda.retries if memory.cuda is not None else 0,
        breakdown=Breakdown(
            parameters=parts.parameters, gradients=parts.gradients, optimizer_state=parts.optimizer_state,
            activations=activations, other=max(0, allocated - held - activations),
        ),
    )  # fmt: skip


def _samples(one: Watched) -> tuple[WatchedStep, ...]:
    return one.records[min(WARM_UP, len(one.records) - 1) :]


def _timing(steps: Sequence[WatchedStep]) -> StepTiming:
    """Return the parts of a global step: they add up to its wall time, the wait for batches included.

    What comes between an optimizer step and the next forward pass is counted with the optimizer step.
    """
    last = summarize([max(step.last, 1e-9) for step in steps], TRIMMED)
    others = [statistics.fmean(step.others) for step in steps if step.others]
    return StepTiming(
        micro_step=summarize(others, TRIMMED) if others else last,
        last_micro_step=last,
        optimizer_step=summarize([step.optimizer + step.wait for step in steps], TRIMMED),
    )
