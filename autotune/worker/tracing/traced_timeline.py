"""The timeline of what was recorded: its slots numbered anew, and what is known of the training beside them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

import torch
import transformers

from autotune.candidate import Candidate
from autotune.outcome import AttentionKernel
from autotune.probe.protocol import ProbeRequest
from autotune.timeline.composed import with_optimizer
from autotune.timeline.op_counts import OpCounts
from autotune.timeline.step_events import Slots, StepEvents
from autotune.timeline.timeline import Timeline
from autotune.timeline.traced_blocks import TracedBlocks
from autotune.worker.experts import parameter_count
from autotune.worker.measuring.unfused import unfused_modules
from autotune.worker.tracing.fake_training import FakeTraining
from autotune.worker.tracing.slot_matching import translated
from autotune.worker.tracing.step_tracer import StepTracer


class TrainingSegments(NamedTuple):
    """The stretches of a training that a timeline is put together of, in the recorder's slots."""

    build: StepEvents
    micro: StepEvents
    first_update: StepEvents
    update: StepEvents
    single: StepEvents | None = None
    evaluation: StepEvents | None = None


class Sizes(NamedTuple):
    """The bytes of each of the recorder's slots: `base`, and `slope` more for each sample of the micro-batch."""

    base: list[int]
    slope: list[int]


def traced_timeline(
    request: ProbeRequest,
    fake: FakeTraining,
    tracer: StepTracer,
    segments: TrainingSegments,
    sizes: Sizes,
    work: OpCounts,
    kernels: tuple[AttentionKernel, ...],
    began: float,
    blocks: TracedBlocks | None = None,
    exact: int | None = None,
) -> Timeline:
    """Return the timeline of what `tracer` took `fake` through, with the slots that are used numbered from 0 on.

    `began` is when that began, by the clock of `time.perf_counter`.
    """
    training, made = fake.training, fake.recorder.allocations
    used: dict[int, int] = {}
    for segment in filter(None, segments):
        for event in segment.events:
            used.setdefault(event if event >= 0 else ~event, len(used))
    kept = list(used)

    def of(values: list[int]) -> list[int]:
        return [values[slot] for slot in kept]

    def renumbered(segment: StepEvents) -> StepEvents:
        return StepEvents(
            [translated(event, used) for event in segment.events],
            segment.marks,
            [entry._replace(slot=used[entry.slot]) for entry in segment.accumulated],
        )

    return Timeline(
        device="cuda" if request.device.startswith("cuda") else "cpu",
        slots=Slots(of(sizes.base), of(sizes.slope), of(made.category), of(made.place), of(made.module)),
        modules=made.attribution.names,
        build=renumbered(segments.build),
        micro=renumbered(segments.micro),
        single=None if segments.single is None else renumbered(segments.single),
        first_update=renumbered(segments.first_update),
        update=renumbered(segments.update),
        evaluation=None if segments.evaluation is None else renumbered(segments.evaluation),
        work=work if tracer.micro_steps == 1 else None,
        exact=exact,
        attention_kernels=kernels,
        unfused=unfused_modules(training.model, request.candidate.attention, training.attention),
        micro_steps=tracer.micro_steps,
        blocks=blocks,
        facts={
            "model": type(training.model).__name__,
            "rung": request.candidate.rung().key(),
            "sharding": request.candidate.sharding,
            "engine": request.candidate.engine,
            "reduce_dtype": request.candidate.reduce_dtype,
            "world_size": request.world_size,
            "nodes": request.nodes,
            "parameters": parameter_count(training.model),
            "seq_len": request.seq_len,
            "sample_bytes": tracer.sample_bytes,
            "tokens_per_sample": training.tokens_per_sample,
            "attention": training.attention or "",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "blocks": fake.blocks_run(),
            "seconds": round(time.perf_counter() - began, 3),
        },
    )


def with_donors_optimizer(candidate: Candidate, passes: Timeline, donor: Timeline) -> Timeline | None:
    """Return the timeline of passes that were traced alone, with a donor's optimizer; None where it does not fit."""
    composed = with_optimizer(candidate, passes, donor, donor)
    if composed is None:
        return None
    return replace(composed, facts={**composed.facts, "seconds": passes.facts["seconds"]})
