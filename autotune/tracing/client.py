"""Timelines for the memory model: traced in a worker, because the tuner never imports torch, or from the cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Protocol

from autotune.candidate import Candidate
from autotune.devices.cpu import threads_variable
from autotune.errors import InputError
from autotune.outcome import Crash, Lost, Ok, Unsupported
from autotune.probe.classify import classify
from autotune.probe.folder import ProbeFolder
from autotune.probe.launch import Launcher, end_all, launch
from autotune.probe.protocol import ProbeRequest, Progress, TraceAnswer, TracedRung
from autotune.timeline.composed import with_optimizer
from autotune.timeline.joined import joined
from autotune.timeline.timeline import Timeline
from autotune.tracing.cache import TraceCache
from autotune.tracing.plan import Halves, Pieces, TracePlan, plan
from autotune.tracing.shares import shares
from autotune.trial import TRIES

RUNGS_PER_WORKER = 3
"""Rungs that make another worker worth its start, where there is a core for it."""
MOST_FAILED = 3
"""Traces that may end their worker before what is left of its share is given up."""
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
        self,
        cache: TraceCache | None = None,
        launcher: Launcher = launch,
        workers: int | None = None,
        ranks: int = 1,
    ) -> None:
        """`workers` is how many may run at a time: one a core, unless given.

        `ranks` are those that will share the cores of the cpu device: some kernels take room for each thread.
        """
        self._cache = cache or TraceCache()
        self._variables = threads_variable(ranks)
        self._launch = launcher
        self._known = _Known(self._cache)
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
        found = self._cached(request, wanted)
        new = [candidate for candidate in wanted if candidate not in found]
        composable = bool(new) and not request.evaluation
        known = self._known.of(request, self._variables, found) if composable else {}
        planned = plan(new, known) if composable else TracePlan({}, {}, {}, ())
        found = {**known, **self._cached(request, planned.helpers), **found}
        stages = planned.halves, planned.replicas, planned.pieces
        composed = {candidate for stage in stages for candidate in stage}
        missing = [one for one in dict.fromkeys((*wanted, *planned.helpers)) if one not in found]
        asked = [candidate for candidate in missing if candidate not in composed]
        pieces = {one: of for stage in stages for one, of in stage.items() if one not in found}
        composing = _Composing(pieces, found, partial(self._composed, request, frozenset(wanted)))
        composing.add(self._in_workers(request, asked, folder, timeout, on_progress, composing))
        for stage in stages:
            # What others are composed of is traced before they are.
            rest = [one for one in missing if one in stage and one not in composing.found]
            composing.add(self._in_workers(request, rest, folder, timeout, on_progress, composing))
        if composable:
            self._known.keep(composing.found)
        return {candidate: composing.found[candidate] for candidate in wanted}

    def _cached(self, request: ProbeRequest, candidates: Iterable[Candidate]) -> dict[Candidate, Trace]:
        found: dict[Candidate, Trace] = {}
        for candidate in candidates:
            timeline = self._cache.find(request.alone(candidate), self._variables)
            if timeline is not None:
                found[candidate] = Trace(timeline, cached=True)
        return found

    def _composed(
        self,
        request: ProbeRequest,
        wanted: Collection[Candidate],
        candidate: Candidate,
        pieces: Pieces | Halves,
        found: Mapping[Candidate, Trace],
    ) -> Trace | None:
        """Return what comes of composing a candidate's trace; None where it has to be traced itself."""
        for piece in _own(pieces):
            if piece in found and found[piece].refused:  # so are all that have these passes
                if piece not in wanted and piece == candidate.with_plainest_optimizer():
                    return None  # unless it is for its optimizer, which nobody asked for
                return Trace(None, found[piece].reason, refused=True)
        timelines = [found[piece].timeline if piece in found else None for piece in pieces]
        known = [timeline for timeline in timelines if timeline is not None]
        if len(known) < len(timelines):
            return None
        compose = with_optimizer if isinstance(pieces, Pieces) else joined
        timeline = compose(candidate, *known)
        if timeline is None:
            return None
        # Of passes others are composed. Packing what another optimizer makes of them takes longer than composing it.
        if candidate == candidate.with_plainest_optimizer():
            self._cache.keep(request.alone(candidate), timeline, variables=self._variables)
        return Trace(timeline, composed=True)

    def _in_workers(
        self,
        request: ProbeRequest,
        candidates: list[Candidate],
        folder: Path,
        timeout: float,
        on_progress: Callable[[Progress], None] | None,
        composing: _Composing,
    ) -> dict[Candidate, Trace]:
        """Trace candidates in as many workers as pay for their start; what is traced is composed from at once."""
        divided = shares(candidates, min(self._most, len(candidates) // RUNGS_PER_WORKER))
        if not candidates:
            return {}
        if len(divided) == 1:
            return self._launched(request, divided[0], ProbeFolder(folder), timeout, on_progress, composing)
        speaking = Lock()

        def speak(progress: Progress) -> None:
            with speaking:
                if on_progress is not None:
                    on_progress(progress)

        found: dict[Candidate, Trace] = {}
        with ThreadPoolExecutor(len(divided)) as pool:
            tasks = [
                pool.submit(
                    self._launched,
                    request,
                    share,
                    ProbeFolder(folder / str(number)),
                    timeout,
                    speak,
                    composing,
                )
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
        composing: _Composing,
    ) -> dict[Candidate, Trace]:
        found: dict[Candidate, Trace] = {}

        def hear(progress: Progress) -> None:
            if progress.traced is not None:
                one = progress.traced.candidate
                found[one] = self._read(request, progress.traced, place)
                composing.add({one: found[one]})
            if on_progress is not None:
                on_progress(progress)

        seconds, lost, failed = 0.0, 0, 0
        try:
            while missing := [candidate for candidate in candidates if candidate not in found]:
                changes = {
                    "kind": "trace",
                    "folder": str(place.scratch),
                    "candidate": missing[0],
                    "also": tuple(missing[1:]),
                }
                request = request.model_copy(update=changes)
                report = self._launch(
                    request, place,
                    # A context on the GPU would take of its memory.
                    environment={"CUDA_VISIBLE_DEVICES": "", **self._variables},
                    data_limit=None, timeout=timeout - seconds, on_progress=hear,
                )  # fmt: skip
                seconds += report.seconds
                if isinstance(report.answer, TraceAnswer):
                    for rung in report.answer.rungs:
                        if rung.candidate not in found:
                            found[rung.candidate] = self._read(request, rung, place)
                untold = [candidate for candidate in missing if candidate not in found]
                if not untold:
                    break
                outcome = classify(request, report, kind="cpu")
                if isinstance(outcome, Lost):  # what ended a worker from outside says nothing of the trace
                    lost += 1
                    if lost == TRIES:
                        found |= dict.fromkeys(untold, Trace(None, _reason(outcome), lost=outcome))
                    continue
                # A worker that traced some came to its end in the next one, which says nothing of those behind it.
                failed += 1
                goes_on = len(untold) < len(missing) and failed < MOST_FAILED and seconds < timeout
                found |= dict.fromkeys(untold[:1] if goes_on else untold, Trace(None, _reason(outcome)))
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
        self._cache.keep(request.alone(rung.candidate), timeline, content, self._variables)
        return Trace(timeline)


class _Known:
    """The traces of a model and goal that a tracer made or found: what is asked for later is composed of them."""

    def __init__(self, cache: TraceCache) -> None:
        self._cache = cache
        self._kin = ""
        self._traces: dict[Candidate, Trace] = {}

    def of(
        self, request: ProbeRequest, variables: Mapping[str, str], found: Mapping[Candidate, Trace]
    ) -> dict[Candidate, Trace]:
        """Return those of a request's kin, `found` among them; the first time, also those that others have cached."""
        kin = self._cache.kin(request, variables)
        if kin != self._kin:
            self._kin = kin
            known = {candidate.rung() for candidate in found}
            self._traces = {
                candidate: Trace(timeline, cached=True)
                for candidate, timeline in self._cache.kindred(request, variables, known)
            }
        self.keep(found)
        return dict(self._traces)

    def keep(self, found: Mapping[Candidate, Trace]) -> None:
        """Take those that others can be composed of: no trace for one micro-batch alone, say."""
        for candidate, trace in found.items():
            if trace.timeline is not None and trace.timeline.exact is None:
                self._traces.setdefault(candidate, trace)


class _Composing:
    """Composes what can be of traces as they come, while workers still trace: in whichever thread brings one."""

    def __init__(
        self,
        pieces: Mapping[Candidate, Pieces | Halves],
        found: Mapping[Candidate, Trace],
        compose: Callable[[Candidate, Pieces | Halves, Mapping[Candidate, Trace]], Trace | None],
    ) -> None:
        """Take what is composed of what, what is there, and what composes: None where that does not give a trace."""
        self.found = dict(found)
        """All traces so far."""
        self._pieces, self._compose = pieces, compose
        self._served: dict[Candidate, list[Candidate]] = {}
        for candidate, of in pieces.items():
            for piece in of:
                self._served.setdefault(piece, []).append(candidate)
        self._tried: set[Candidate] = set()
        self._lock = Lock()
        self._try(found)

    def add(self, traces: Mapping[Candidate, Trace]) -> None:
        """Take traces, and compose what they were missing for."""
        with self._lock:
            self.found |= traces
            self._try(traces)

    def _try(self, news: Iterable[Candidate]) -> None:
        waiting = list(news)
        while waiting:
            for candidate in self._served.get(waiting.pop(), ()):
                of = self._pieces[candidate]
                if candidate in self._tried or not self.found.keys() >= {*of}:
                    continue
                self._tried.add(candidate)
                trace = self._compose(candidate, of, self.found)
                if trace is not None:
                    self.found[candidate] = trace
                    waiting.append(candidate)


def _own(pieces: Pieces | Halves) -> tuple[Candidate, ...]:
    """Return the pieces whose refusal is one of what is composed of them."""
    return (pieces.passes,) if isinstance(pieces, Pieces) else (pieces.blocks, pieces.rest)


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
