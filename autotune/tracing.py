"""Timelines for the memory model: traced in a worker, because the tuner never imports torch, or from the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.errors import InputError
from autotune.memory.timeline import Timeline
from autotune.outcome import Crash, Ok, Unsupported
from autotune.probe.classify import classify
from autotune.probe.folder import ProbeFolder
from autotune.probe.launch import Launcher, launch
from autotune.probe.protocol import ProbeRequest, Progress, Traced
from autotune.trace_cache import TraceCache


@dataclass(frozen=True)
class Trace:
    """What came of tracing one rung."""

    timeline: Timeline | None
    """None where the rung cannot be traced."""
    reason: str = ""
    """Why not, and what to do."""
    seconds: float = 0.0
    """Wall time of the worker; 0 from the cache."""


class Tracer(Protocol):
    """Knows the timeline of a candidate's rung, or why there is none."""

    def trace(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Trace:
        """Trace the request's candidate; `folder` is the worker's own where one is needed.

        Raises ProbeError when no worker could be launched.
        """
        ...


class LocalTracer:
    """Traces in a fresh process on this machine, without touching the device that is tuned for."""

    def __init__(self, cache: TraceCache | None = None, launcher: Launcher = launch) -> None:
        self._cache = cache or TraceCache()
        self._launch = launcher

    def trace(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Trace:
        """Look in the cache, else launch a worker and wait for it."""
        place = ProbeFolder(folder)
        request = request.model_copy(update={"kind": "trace", "folder": str(place.scratch)})
        if (known := self._cache.find(request)) is not None:
            return Trace(known)
        try:
            report = self._launch(
                request, place,
                environment={"CUDA_VISIBLE_DEVICES": ""},  # a context on the GPU would take of its memory
                data_limit=None, timeout=timeout, on_progress=on_progress,
            )  # fmt: skip
            if not isinstance(report.answer, Traced):
                outcome = classify(request, report, kind="cpu")
                return Trace(None, _reason(outcome), report.seconds)
            try:
                timeline = Timeline.parse((place.scratch / report.answer.file).read_text("utf-8"))
            except (OSError, UnicodeDecodeError, InputError) as error:
                return Trace(None, f"the trace cannot be read: {error}", report.seconds)
        finally:
            place.clear_scratch()
        self._cache.keep(request, timeline)
        return Trace(timeline, seconds=report.seconds)


def _reason(outcome: object) -> str:
    match outcome:
        case Unsupported(reason=reason):
            return reason
        case Crash(message=message):
            return f"tracing failed: {message}"
        case Ok():
            raise AssertionError("a trace does not train")
        case _:
            return f"tracing ended with {type(outcome).__name__}"
