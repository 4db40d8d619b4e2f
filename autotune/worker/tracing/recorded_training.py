"""A training on fake tensors whose allocations are recorded: built for one trace, or shared with others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autotune.probe.protocol import ProbeRequest
from autotune.timeline.step_events import StepEvents
from autotune.worker.tracing.fake_training import prepare_ranks, recording
from autotune.worker.tracing.shared_training import alone, sharing
from autotune.worker.tracing.shortening import Shortening
from autotune.worker.tracing.storage_recorder import StorageRecorder
from autotune.worker.training import Training


@contextmanager
def recorded_training(
    request: ProbeRequest, micro_steps: int, whole: str, shared: bool = False
) -> Iterator[tuple[StorageRecorder, Training, StepEvents, Shortening | None]]:
    """Return a recorder, a training and how it was built, and how few blocks stand for all; `shared` if that serves."""
    kept = sharing(request) if shared else None
    if kept is not None:
        with kept.recording(request, bool(whole)) as found:
            yield found
        return
    with recording(request, micro_steps, alone()) as (recorder, training, building):
        shortening = None if whole else Shortening.of(training, request)
        prepare_ranks(request, recorder, training, building, shortening)
        yield recorder, training, building, shortening
