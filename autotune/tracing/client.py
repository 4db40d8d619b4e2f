"""Timelines for the memory model: traced in a worker, because the tuner never imports torch, or from the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.candidate import Candidate
from autotune.errors import InputError
from autotune.outcome import Crash, Lost, Ok, Unsupported
from autotune.probe.classify import classify
from autotune.probe.folder import ProbeFolder
from autotune.probe.launch import Launcher, launch
from autotune.probe.protocol import ProbeRequest, Progress, TraceAnswer, TracedRung
from autotune.timeline.timeline import Timeline
from autotune.tracing.cache import TraceCache
from autotune.trial import TRIES


@dataclass(frozen=True)
class Trace:
    """What came of tracing one rung."""

    timeline: Timeline | None
    """None where the rung cannot be traced."""
    reason: str = ""
    """Why not, and what to do."""
    seconds: float = 0.0
    """Wall time of the worker, shared by all that it traced; 0 from the cache."""
    lost: Lost | None = None
    """That something outside ended the worker each time, so that nothing is known."""
    cached: bool = False
    """Whether it was made before, and read from the cache."""


class Tracer(Protocol):
    """Knows the timelines of candidates' rungs, or why there is none."""

    def trace(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> dict[Candidate, Trace]:
        """Trace the request's candidate and those it has besides; `folder` is the worker's own.

        `timeout` (seconds) is for all of them together. Raises ProbeError when no worker could be launched.
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
    ) -> dict[Candidate, Trace]:
        """Look in the cache, and launch one worker for all that is not there."""
        wanted = (request.candidate, *request.also)
        known: dict[Candidate, Trace] = {}
        for candidate in wanted:
            timeline = self._cache.find(request.model_copy(update={"candidate": candidate}))
            if timeline is not None:
                known[candidate] = Trace(timeline, cached=True)
        if missing := [candidate for candidate in wanted if candidate not in known]:
            known |= self._launched(request, missing, ProbeFolder(folder), timeout, on_progress)
        return known

    def _launched(
        self,
        request: ProbeRequest,
        candidates: list[Candidate],
        place: ProbeFolder,
        timeout: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> dict[Candidate, Trace]:
        first, *rest = candidates
        changes = {"kind": "trace", "folder": str(place.scratch), "candidate": first, "also": tuple(rest)}
        request = request.model_copy(update=changes)
        try:
            for _ in range(TRIES):  # what ended a worker from outside says nothing of the trace
                report = self._launch(
                    request, place,
                    environment={"CUDA_VISIBLE_DEVICES": ""},  # a context on the GPU would take of its memory
                    data_limit=None, timeout=timeout, on_progress=on_progress,
                )  # fmt: skip
                if isinstance(report.answer, TraceAnswer):
                    break
                outcome = classify(request, report, kind="cpu")
                if not isinstance(outcome, Lost):
                    break
            if not isinstance(report.answer, TraceAnswer):
                lost = outcome if isinstance(outcome, Lost) else None
                return dict.fromkeys(candidates, Trace(None, _reason(outcome), report.seconds, lost))
            share = report.seconds / len(candidates)
            return {rung.candidate: self._read(request, rung, place, share) for rung in report.answer.rungs}
        finally:
            place.clear_scratch()

    def _read(self, request: ProbeRequest, rung: TracedRung, place: ProbeFolder, seconds: float) -> Trace:
        if not rung.file:
            return Trace(None, rung.reason, seconds)
        try:
            timeline = Timeline.parse((place.scratch / rung.file).read_text("utf-8"))
        except (OSError, UnicodeDecodeError, InputError) as error:
            return Trace(None, f"the trace cannot be read: {error}", seconds)
        self._cache.keep(request.model_copy(update={"candidate": rung.candidate}), timeline)
        return Trace(timeline, seconds=seconds)


def _reason(outcome: object) -> str:
    match outcome:
        case Unsupported(reason=reason):
            return reason
        case Crash(message=message):
            return f"tracing failed: {message}"
        case Lost(message=message):
            return f"tracing was ended from outside, {TRIES} times: {message}"
        case Ok():
            raise AssertionError("a trace does not train")
        case _:
            return f"tracing ended with {type(outcome).__name__}"
