"""Timelines for the memory model: traced in a worker, because the tuner never imports torch, or from the cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Protocol

from autotune.candidate import Candidate
from autotune.errors import InputError
from autotune.outcome import Crash, Lost, Ok, Unsupported
from autotune.probe.classify import classify
from autotune.probe.folder import ProbeFolder
from autotune.probe.launch import Launcher, end_all, launch
from autotune.probe.protocol import ProbeRequest, Progress, TraceAnswer, TracedRung
from autotune.timeline.composed import with_optimizer
from autotune.timeline.timeline import Timeline
from autotune.tracing.cache import TraceCache
from autotune.tracing.plan import Pieces, composable, shares
from autotune.trial import TRIES

RUNGS_PER_WORKER = 3
"""Rungs that make another worker worth its start, where there is a core for it."""
MOST_WORKERS = 8
"""Workers at a time, however many cores there are: each takes half a GiB."""


@dataclass(frozen=True)
class Trace:
    """What came of tracing one rung."""

    timeline: Timeline | None
    """None where the rung cannot be traced."""
    reason: str = ""
    """Why not, and what to do."""
    seconds: float = 0.0
    """Wall time of the worker, shared by all that it traced; 0 from the cache."""
    refused: bool = False
    """Whether a worker said that the rung cannot be traced, and why."""
    lost: Lost | None = None
    """That something outside ended the worker each time, so that nothing is known."""
    cached: bool = False
    """Whether it was made before, and read from the cache."""
    composed: bool = False
    """Whether it was put together from traces of others, instead of traced."""


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
    """Traces in fresh processes on this machine, without touching the device that is tuned for.

    Many candidates share few workers, one a core; what can be composed of the others' traces is not traced. Each trace
    is in the cache as soon as it is made, so that what ends a worker costs the rest alone.
    """

    def __init__(
        self, cache: TraceCache | None = None, launcher: Launcher = launch, workers: int | None = None
    ) -> None:
        """`workers` is how many may run at a time: one a core, unless given."""
        self._cache = cache or TraceCache()
        self._launch = launcher
        self._most = workers or min(MOST_WORKERS, len(os.sched_getaffinity(0)))

    def trace(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> dict[Candidate, Trace]:
        """Look in the cache, launch workers for what is not there, and compose what needs none.

        `on_progress` may be called by several threads, one at a time.
        """
        wanted = tuple(dict.fromkeys((request.candidate, *request.also)))
        found: dict[Candidate, Trace] = {}
        for candidate in wanted:
            timeline = self._cache.find(_of(request, candidate))
            if timeline is not None:
                found[candidate] = Trace(timeline, cached=True)
        plan = {} if request.evaluation else composable(wanted)
        asked = [candidate for candidate in wanted if candidate not in found and candidate not in plan]
        found |= self._in_workers(request, asked, folder, timeout, on_progress)
        for candidate in wanted:
            if candidate in found:
                continue
            passes = found.get(plan[candidate].passes)
            if passes is not None and passes.refused:  # so are all that have these passes
                found[candidate] = Trace(None, passes.reason, refused=True)
            elif (timeline := _composed(candidate, plan[candidate], found)) is not None:
                self._cache.keep(_of(request, candidate), timeline)
                found[candidate] = Trace(timeline, composed=True)
        rest = [candidate for candidate in wanted if candidate not in found]
        found |= self._in_workers(request, rest, folder, timeout, on_progress)
        return {candidate: found[candidate] for candidate in wanted}

    def _in_workers(
        self,
        request: ProbeRequest,
        candidates: list[Candidate],
        folder: Path,
        timeout: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> dict[Candidate, Trace]:
        """Trace candidates in as many workers as pay for their start."""
        divided = shares(candidates, min(self._most, len(candidates) // RUNGS_PER_WORKER))
        if not candidates:
            return {}
        if len(divided) == 1:
            return self._launched(request, divided[0], ProbeFolder(folder), timeout, on_progress)
        speaking = Lock()

        def speak(progress: Progress) -> None:
            with speaking:
                if on_progress is not None:
                    on_progress(progress)

        found: dict[Candidate, Trace] = {}
        with ThreadPoolExecutor(len(divided)) as pool:
            tasks = [
                pool.submit(self._launched, request, share, ProbeFolder(folder / str(number)), timeout, speak)
                for number, share in enumerate(divided)
            ]
            try:
                for task in tasks:
                    found |= task.result()
            except BaseException:  # Ctrl-C too: the pool waits for its threads, and they for their workers
                while not_yet := [task for task in tasks if not task.done() and not task.cancel()]:
                    end_all()
                    wait(not_yet, timeout=0.1)
                raise
        return found

    def _launched(
        self,
        request: ProbeRequest,
        candidates: list[Candidate],
        place: ProbeFolder,
        timeout: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> dict[Candidate, Trace]:
        found: dict[Candidate, Trace] = {}

        def hear(progress: Progress) -> None:
            if progress.traced is not None:
                found[progress.traced.candidate] = self._read(request, progress.traced, place)
            if on_progress is not None:
                on_progress(progress)

        seconds = 0.0
        try:
            for _ in range(TRIES):  # what ended a worker from outside says nothing of the trace
                first, *rest = [candidate for candidate in candidates if candidate not in found]
                changes = {
                    "kind": "trace",
                    "folder": str(place.scratch),
                    "candidate": first,
                    "also": tuple(rest),
                }
                request = request.model_copy(update=changes)
                report = self._launch(
                    request, place,
                    environment={"CUDA_VISIBLE_DEVICES": ""},  # a context on the GPU would take of its memory
                    data_limit=None, timeout=timeout, on_progress=hear,
                )  # fmt: skip
                seconds += report.seconds
                if isinstance(report.answer, TraceAnswer):
                    for rung in report.answer.rungs:
                        if rung.candidate not in found:
                            found[rung.candidate] = self._read(request, rung, place)
                if len(found) == len(candidates):
                    break
                outcome = classify(request, report, kind="cpu")
                if not isinstance(outcome, Lost):
                    break
            if len(found) < len(candidates):
                lost = outcome if isinstance(outcome, Lost) else None
                untold = [candidate for candidate in candidates if candidate not in found]
                found |= dict.fromkeys(untold, Trace(None, _reason(outcome), lost=lost))
            return {
                candidate: replace(found[candidate], seconds=seconds / len(candidates))
                for candidate in candidates
            }
        finally:
            place.clear_scratch()

    def _read(self, request: ProbeRequest, rung: TracedRung, place: ProbeFolder) -> Trace:
        if not rung.file:
            return Trace(None, rung.reason, refused=True)
        try:
            content = (place.scratch / rung.file).read_bytes()
            timeline = Timeline.unpack(content)
        except (OSError, InputError) as error:
            return Trace(None, f"the trace cannot be read: {error}")
        self._cache.keep(_of(request, rung.candidate), timeline, content)
        return Trace(timeline)


def _of(request: ProbeRequest, candidate: Candidate) -> ProbeRequest:
    return request.model_copy(update={"candidate": candidate})


def _composed(candidate: Candidate, pieces: Pieces, found: Mapping[Candidate, Trace]) -> Timeline | None:
    """Return a candidate's timeline from those of its pieces; None where one is missing, or they do not fit."""
    passes, plain, donor = (found[piece].timeline if piece in found else None for piece in pieces)
    if passes is None or plain is None or donor is None:
        return None
    return with_optimizer(candidate, passes, plain, donor)


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
