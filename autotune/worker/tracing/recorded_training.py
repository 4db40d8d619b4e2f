"""A training on fake tensors for one trace: built for it, or on a model that other traces share."""

from __future__ import annotations

from contextlib import AbstractContextManager

from autotune.probe.protocol import ProbeRequest
from autotune.worker.tracing.fake_training import FakeTraining, fake_training
from autotune.worker.tracing.shared_training import alone, sharing


def recorded_training(
    request: ProbeRequest, micro_steps: int, whole: str, shared: bool = False
) -> AbstractContextManager[FakeTraining]:
    """Return a training ready for its passes, as `fake_training` does; on a model that is `shared` if that serves."""
    if shared and (kept := sharing(request)) is not None:
        return kept.fake_training(request, whole)
    return fake_training(request, micro_steps, whole, alone())
