"""The timeline of what was recorded: its slots numbered anew, and what is known of the training beside them."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
import transformers

from autotune.candidate import Candidate
from autotune.probe.protocol import ProbeRequest
from autotune.timeline.composed import with_optimizer
from autotune.timeline.op_counts import OpCounts
from autotune.timeline.step_events import Slots, StepEvents
from autotune.timeline.timeline import Timeline
from autotune.timeline.traced_blocks import TracedBlocks
from autotune.worker.experts import parameter_count
from autotune.worker.measuring.attention_kernel import AttentionKernels
from autotune.worker.measuring.unfused import unfused_modules
from autotune.worker.tracing.shortening import Shortening
from autotune.worker.tracing.slot_matching import translated
from autotune.worker.tracing.storage_recorder import StorageRecorder
from autotune.worker.training import Training


def traced_timeline(
    request: ProbeRequest,
    recorder: StorageRecorder,
    training: Training,
    base: list[int],
    slope: list[int],
    segments: tuple[StepEvents, StepEvents, StepEvents, StepEvents, StepEvents | None, StepEvents | None],
    work: OpCounts,
    exact: int | None,
    began: float,
    sample_bytes: int,
    micro_steps: int,
    seen: AttentionKernels | None,
    shortening: Shortening | None,
    whole: str,
    blocks: TracedBlocks | None = None,
) -> Timeline:
    """Return the timeline of all segments, with the slots that they use numbered from 0 on."""
    building, micro, first, update, single, evaluation = segments
    used: dict[int, int] = {}
    for segment in filter(None, segments):
        for event in segment.events:
            used.setdefault(event if event >= 0 else ~event, len(used))
    kept, made = list(used), recorder.allocations

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
        slots=Slots(of(base), of(slope), of(made.category), of(made.place), of(made.module)),
        modules=made.attribution.names,
        build=renumbered(building),
        micro=renumbered(micro),
        single=None if single is None else renumbered(single),
        first_update=renumbered(first),
        update=renumbered(update),
        evaluation=None if evaluation is None else renumbered(evaluation),
        work=work if micro_steps == 1 else None,
        exact=exact,
        attention_kernels=seen.kernels if seen else (),
        unfused=unfused_modules(training.model, request.candidate.attention, training.attention),
        micro_steps=micro_steps,
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
            "sample_bytes": sample_bytes,
            "tokens_per_sample": training.tokens_per_sample,
            "attention": training.attention or "",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "blocks": shortening.described() if shortening else f"all: {whole or 'too few are alike'}",
            "seconds": round(time.perf_counter() - began, 3),
        },
    )


def with_donors_optimizer(candidate: Candidate, passes: Timeline, donor: Timeline) -> Timeline | None:
    """Return the timeline of passes that were traced alone, with a donor's optimizer; None where it does not fit."""
    composed = with_optimizer(candidate, passes, donor, donor)
    if composed is None:
        return None
    return replace(composed, facts={**composed.facts, "seconds": passes.facts["seconds"]})
