"""How long collectives take in a training step: seen in one step beside those that are timed.

NCCL's are kernels on the GPU, which torch's profiler sees; gloo's are seen where they are asked for and done. What is
counted is the time in which at least one was under way: computing that goes on meanwhile is not taken off, and waiting
for a rank that comes later is in it.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable

import torch
from torch.autograd.profiler import profile

from autotune.outcome import Communication
from autotune.probe.protocol import ProbeRequest
from autotune.worker.measuring.gloo_collectives import Collectives, Spans
from autotune.worker.measuring.steps import Stepper, StepTimes

ROOM = {"cpu": 8 * 2**20, "cuda": 512 * 2**20}
"""Bytes that must be free to look: it must not refuse a candidate that fits. On the CPU that is what Python notes; on
CUDA the profiler's, whose buffers are on the device too, and the number is assumed."""
ROOM_SHARE = 32
"""Likewise a part of the budget, since larger models have more to tell; less than the default headroom."""


def listen(request: ProbeRequest, stepper: Stepper, micro_steps: int) -> Communication | None:
    """Run one more step, watched, and return how long its collectives took; None where that is not told.

    That is so on one rank, where a rank has too little memory left, and where the backend tells nothing.
    All ranks call it together. A step that fails here fails no probe: it was not one of those that are asked about.
    """
    ranks, kind = stepper.training.ranks, stepper.training.device.type
    room = max(ROOM[kind], request.budget // ROOM_SHARE)
    if ranks.size == 1 or ranks.largest(_taken(request, stepper) + room - request.budget) > 0:
        return None
    look = _on_gpu if kind == "cuda" else _on_gloo
    try:
        return in_parts(*look(stepper, micro_steps), micro_steps)
    except (RuntimeError, MemoryError):
        traceback.print_exc()  # for people, in the probe's standard error
        return None


def _on_gloo(stepper: Stepper, micro_steps: int) -> tuple[Spans, int, StepTimes]:
    """Return the spans of a step's collectives, when it began on their clock, and its parts."""
    with Collectives() as seen:
        parts = stepper.step(micro_steps)
    return seen.spans(), int(1e9 * parts.began), parts


def _on_gpu(stepper: Stepper, micro_steps: int) -> tuple[Spans, int, StepTimes]:
    """As for gloo, in nanoseconds since the epoch."""
    with profile(use_kineto=True, use_device="cuda") as seen:
        parts = stepper.step(micro_steps)
        epoch = time.time_ns() - time.perf_counter_ns()
    results = seen.kineto_results
    kernels = [
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in (results.events() if results is not None else ())
        if event.device_type() == torch.autograd.DeviceType.CUDA and "nccl" in event.name().lower()
    ]
    return kernels, epoch + int(1e9 * parts.began), parts


def _taken(request: ProbeRequest, stepper: Stepper) -> int:
    """Return the bytes of the budget that are not free, as far as the device says."""
    meter = stepper.phases.meter
    if not meter.asynchronous:
        return meter.peaks().reserved
    free = meter.free()
    return request.budget - free if free is not None else 0


def in_parts(
    spans: Iterable[tuple[int, int]], began: int, parts: StepTimes, micro_steps: int
) -> Communication | None:
    """Share spans out to the parts of a step that began then; None where there are none.

    A span counts where it began: one of gloo's threads may tell of its end when who waited for it has gone on.
    """
    spans = sorted(spans)
    if not spans:
        return None
    early = (parts.micro_step or 0.0) * (micro_steps - 1)
    first = began + int(1e9 * early)
    second = first + int(1e9 * parts.last_micro_step)
    last = covered(begun(spans, first, second))
    return Communication(
        micro_step=covered(begun(spans, began, first)) / (micro_steps - 1) if micro_steps > 1 else last,
        last_micro_step=last,
        optimizer_step=covered(begun(spans, second, second + int(1e9 * parts.optimizer_step))),
    )


def begun(spans: Spans, begin: int, end: int) -> Spans:
    """Return the spans that began between two times."""
    return [span for span in spans if begin <= span[0] < end]


def covered(spans: Spans) -> float:
    """Return the seconds in which at least one span (they are sorted) was under way."""
    total, reached = 0, 0
    for start, stop in spans:
        start = max(start, reached)
        if stop > start:
            total += stop - start
            reached = stop
    return total / 1e9
