"""Traces of a recorded grid, at the cost in seconds that they had; what it does not hold is traced as usual."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

from autotune.candidate import Candidate
from autotune.devices.recorded_grid import NotRecorded, RecordedGrid
from autotune.errors import InputError
from autotune.probe.protocol import ProbeRequest, Progress
from autotune.timeline.timeline import Timeline
from autotune.tracing.client import Trace, Tracer


class ReplayTracer:
    """Answers from a grid's traces. A call costs one start of a worker, and what each trace took beyond that."""

    def __init__(self, grid: RecordedGrid, tracer: Tracer | None = None) -> None:
        """`tracer` makes what the grid does not hold, which is then charged as it comes; None refuses that."""
        self._grid = grid
        self._tracer = tracer

    def trace(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> dict[Candidate, Trace]:
        """Return the recorded traces. Raises NotRecorded where there is none and nothing makes it."""
        wanted = (request.candidate, *request.also)
        held = {one: trace for one in wanted if (trace := self._recorded(one)) is not None}
        missing = [one for one in wanted if one not in held]
        made: dict[Candidate, Trace] = {}
        if missing:
            if self._tracer is None:
                raise NotRecorded(f"{self._grid.source} holds no trace of {missing[0].key()}")
            first, *rest = missing
            asked = request.model_copy(update={"candidate": first, "also": tuple(rest)})
            made = self._tracer.trace(asked, folder, timeout=timeout, on_progress=on_progress)
        if not held:
            return made
        start = max(start for _, start in held.values())
        share = (start + sum(trace.seconds for trace, _ in held.values())) / len(held)
        return made | {one: dataclasses.replace(trace, seconds=share) for one, (trace, _) in held.items()}

    def _recorded(self, candidate: Candidate) -> tuple[Trace, float] | None:
        """Return the recorded trace with its own seconds, and those of its worker's start.

        None where there is none, or only one that is made anew.
        """
        traces, plain = self._grid.traces, candidate.traced()
        for one in (candidate, plain, plain.rung()):
            if (line := traces.get(one)) is None:
                continue
            try:
                timeline = unpacked(line.timeline, self._grid.source) if line.timeline else None
            except InputError:
                if self._tracer is None:
                    raise
                return None  # of another version's format
            if timeline is None or timeline.covers(candidate.micro_batch):
                return Trace(timeline, line.reason, line.seconds), line.start_seconds
        return None


def packed(timeline: Timeline) -> str:
    """Return a timeline as a line of a grid holds it."""
    return base64.b64encode(gzip.compress(timeline.dump().encode(), compresslevel=9, mtime=0)).decode()


def unpacked(text: str, source: str) -> Timeline:
    """Return the timeline of a grid's line. Raises InputError."""
    try:
        return Timeline.parse(gzip.decompress(base64.b64decode(text, validate=True)).decode())
    except (binascii.Error, OSError, EOFError, zlib.error, UnicodeDecodeError, InputError) as error:
        raise InputError(f"{source}: a trace of it cannot be read: {error}") from None
