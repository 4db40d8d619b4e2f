"""What a candidate should take of a GPU that need not be there: memory from its trace, speed from a roofline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from autotune.bounds import MOST_SAMPLES
from autotune.candidate import Candidate
from autotune.devices.hardware import Hardware
from autotune.memory.host_footprint import loader_bytes
from autotune.memory.predictor import Predictor
from autotune.outcome import Breakdown, Phase, StepTiming
from autotune.timeline.timeline import Peak, Timeline, Unfused
from autotune.units import format_bytes
from autotune.validation import Frozen

SHOWN = 12
"""Holders of the peak that are listed."""
NOTED = 0.05
"""Share of a peak from which on it is said what a model keeps needlessly."""
_TEXTS: dict[Unfused, str] = {
    "activation": "activation functions that are several operators hold {held} of the peak, where one keeps "
    "its input alone; gelu_new is gelu_pytorch_tanh in the model's configuration",
    "attention": "the model has eager attention alone, whatever is asked for: it holds {held} of the peak, growing "
    "with the square of the sequence, and no flash or memory-efficient kernel can run",
}


class Note(Frozen):
    """Something about the model that decides its peak, and is none of the candidate's techniques."""

    unfused: Unfused
    """What it computes in several operators."""
    bytes: int
    """What that holds at the peak."""
    text: str


class Estimate(Frozen):
    """The prediction for one candidate on one of the GPUs. Bytes; nothing here was measured."""

    candidate: Candidate
    evidence: Literal["predicted"] = "predicted"
    micro_batch: int
    """Samples that the numbers are of."""
    accumulation_steps: Annotated[int, Field(ge=1)]
    """Micro-steps of the global step that the numbers are of."""
    allocated_peak_bytes: int
    """Peak of the tensors on the device, in blocks of 512 B, with the cuBLAS workspaces: what torch calls allocated."""
    reserved_peak_bytes: int
    """Peak of what the caching allocator holds: segments, and what is fragmented in them, included."""
    device_peak_bytes: int
    """Peak of the whole process on the device: CUDA context, libraries and NCCL's buffers included."""
    interval: tuple[int, int]
    """The 95% interval of `device_peak_bytes`."""
    host_peak_bytes: int
    """Peak of the tensors in host memory, with the batches that a DataLoader holds in advance; of the rank
    that builds the model for all, where one does."""
    disk_bytes: int = 0
    """Peak of the tensors in files on disk."""
    breakdown: Breakdown
    """Of `allocated_peak_bytes`, by what it holds."""
    phase: Phase
    """In which the peak is reached."""
    holders: tuple[tuple[str, str, int], ...]
    """The modules, and what else, that hold most at the peak: (module, what, bytes)."""
    notes: tuple[Note, ...] = ()
    """What the model itself adds to the peak, where that is more than a twentieth of it."""
    usable_bytes: int
    """What the candidate may take: the device's memory less the headroom."""
    fits: bool
    largest_micro_batch: Annotated[int, Field(ge=0)]
    """The largest micro-batch (samples) that should fit; 0 where not even 1 does."""
    evaluation_micro_batch: int | None = None
    """The largest for evaluation beside that training, up to 16 times its own; None where it was not traced."""
    tokens_per_second: float | None
    """Of all GPUs together, at `micro_batch`; None where the trace knows no work."""
    largest_tokens_per_second: float | None
    """The same at the largest micro-batch; None where nothing fits."""
    trace_seconds: float
    """Of the trace itself, when it was made."""
    trace_cached: bool = False
    """Whether that was before: the trace came from the cache."""
    price_seconds: float
    """Of pricing this candidate from its trace."""


class Unpriced(Frozen):
    """A candidate that cannot be traced."""

    candidate: Candidate
    reason: str
    """Why, and what to do."""


def price(
    candidate: Candidate,
    timeline: Timeline,
    hardware: Hardware,
    *,
    usable: int,
    gpus: int,
    accumulation_steps: int,
    speed: Callable[[int], StepTiming | None],
    tokens_per_micro_batch: Callable[[int], int],
    cached: bool = False,
) -> Estimate:
    """Price a candidate at its own micro-batch, and find the largest that fits `usable` bytes.

    `speed` gives the parts of a step at a micro-batch, `tokens_per_micro_batch` the tokens that all GPUs together
    take in one micro-step. `cached` says that the timeline was made before.
    """
    began = time.perf_counter()
    accumulating = accumulation_steps > 1
    overhead = hardware.overhead(gpus)
    predictor = Predictor({}, overhead, lambda _: accumulating).with_timeline(candidate, timeline)
    prediction = predictor.predict(candidate)
    assert prediction is not None, "a candidate's own trace covers it"
    peak = timeline.peak(candidate.micro_batch, accumulating, blas_workspace=overhead.blas_workspace)
    host = timeline.allocated(candidate.micro_batch, accumulating, "host")
    host += loader_bytes(candidate, int(timeline.facts.get("sample_bytes", 0)))
    priced = time.perf_counter() - began
    fits = prediction.peak <= usable
    largest = predictor.largest(candidate.rung(), usable, range(1, MOST_SAMPLES + 1))
    if largest is None:  # the trace holds for one micro-batch alone
        largest = candidate.micro_batch if fits else 0

    def tokens_per_second(micro_batch: int) -> float | None:
        timing = speed(micro_batch) if micro_batch else None
        if timing is None:
            return None
        return (
            accumulation_steps * tokens_per_micro_batch(micro_batch) / timing.global_step(accumulation_steps)
        )

    return Estimate(
        candidate=candidate,
        micro_batch=candidate.micro_batch,
        accumulation_steps=accumulation_steps,
        allocated_peak_bytes=prediction.allocated,
        reserved_peak_bytes=prediction.reserved,
        device_peak_bytes=prediction.peak,
        interval=(prediction.low, prediction.high),
        host_peak_bytes=host,
        disk_bytes=timeline.allocated(candidate.micro_batch, accumulating, "disk"),
        breakdown=prediction.breakdown,
        phase=peak.phase,
        holders=tuple((holder.module, holder.category, holder.bytes) for holder in peak.holders[:SHOWN]),
        notes=_notes(timeline, peak),
        usable_bytes=usable,
        fits=fits,
        largest_micro_batch=largest,
        evaluation_micro_batch=predictor.largest_evaluation(candidate, usable) if fits else None,
        tokens_per_second=tokens_per_second(candidate.micro_batch),
        largest_tokens_per_second=tokens_per_second(largest),
        trace_seconds=float(timeline.facts.get("seconds", 0.0)),
        trace_cached=cached,
        price_seconds=round(priced, 4),
    )


def _notes(timeline: Timeline, peak: Peak) -> tuple[Note, ...]:
    held: dict[Unfused, int] = {}
    for holder in peak.holders:
        kind = timeline.unfused.get(holder.module)
        if kind is not None and holder.category in {"activation", "temporary"}:
            held[kind] = held.get(kind, 0) + holder.bytes
    return tuple(
        Note(unfused=kind, bytes=size, text=_TEXTS[kind].format(held=format_bytes(size)))
        for kind, size in held.items()
        if size >= NOTED * peak.bytes
    )
