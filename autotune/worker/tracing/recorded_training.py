"""A training on fake tensors for one trace: built for it, or on a model that other traces share."""

from __future__ import annotations

from contextlib import AbstractContextManager

from autotune.probe.protocol import ProbeRequest
from autotune.worker.tracing.fake_training import FakeTraining, fake_training
from autotune.worker.tracing.shared_training import close_shared_models, does_nothing_but_trace, sharing


def recorded_training(
    request: ProbeRequest, micro_steps: int, why_all: str, shared: bool = False
) -> AbstractContextManager[FakeTraining]:
    """Return a training ready for its passes, as `fake_training` does; on a model that is `shared` if that serves."""
    if shared and (kept := sharing(request)) is not None:
        return kept.fake_training(request, why_all)
    close_shared_models()
    return fake_training(request, micro_steps, why_all, does_nothing_but_trace())
