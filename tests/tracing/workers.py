"""Stand-ins for workers that trace."""

from __future__ import annotations

import signal
from dataclasses import replace

from autotune.probe.exit import Exit, Report
from autotune.probe.protocol import Progress, TraceAnswer, TracedRung
from autotune.timeline.op_counts import OpCounts, Operators
from autotune.timeline.step_events import Slots, StepEvents
from autotune.timeline.timeline import Timeline
from tests.data.requests import family, request

TIMELINE = Timeline(
    device="cpu", slots=Slots([64], [8], [0], [0], [0]), modules=["m"], build=StepEvents([0], [(0, "build")]),
    micro=StepEvents([], []), single=StepEvents([], []), first_update=StepEvents([], []), update=StepEvents([], []),
)  # fmt: skip


TRACED = object()


class Launch:
    """Answers with what it was given, and leaves the files that a worker would; TRACED names every candidate."""

    def __init__(self, answer, content=None, ending=None):
        self.answer, self.content, self.ending = answer, content, ending
        self.launched = []

    def said(self, request):
        if self.answer is not TRACED:
            return self.answer
        names = (request.candidate, *request.also)
        return TraceAnswer(rungs=[TracedRung(candidate=name, file="timeline.trace") for name in names])

    def __call__(self, request, folder, **options):
        self.launched.append((request, options))
        folder.create()
        if self.content is not None:
            (folder.scratch / "timeline.trace").write_bytes(self.content)
        return Report(
            answer=self.said(request), ending=self.ending or Exit(exit_code=0, seconds=1), seconds=1.5
        )


WORKING = replace(TIMELINE, work=OpCounts(Operators(), {}, {}, {}))


class Worker(Launch):
    """A worker that says of each candidate that it was traced, and may be ended before some."""

    def __init__(self, ends_before=None, timeline=WORKING, dies_at=()):
        super().__init__(TRACED, timeline.pack())
        self.ends_before = ends_before
        self.dies_at = dies_at

    def __call__(self, request, folder, **options):
        super().__call__(request, folder, **options)
        told = []
        for candidate in (request.candidate, *request.also):
            if candidate == self.ends_before:
                self.ends_before = None
                ending = Exit(signal=signal.SIGKILL, oom_kills=0, seconds=1)
                return Report(answer=None, ending=ending, seconds=1.5)
            if candidate in self.dies_at:
                return Report(answer=None, ending=Exit(signal=signal.SIGSEGV, seconds=1), seconds=1.5)
            told.append(TracedRung(candidate=candidate, file="timeline.trace"))
            options["on_progress"](Progress(phase="start", traced=told[-1]))
        return Report(answer=TraceAnswer(rungs=told), ending=Exit(exit_code=0, seconds=1), seconds=1.5)


def ask(tracer, candidates, folder, heard=None, **fields):
    first, *rest = candidates
    changes = {"candidate": first, "also": tuple(rest), **fields}
    probe = request(family("gpt2"), folder).model_copy(update=changes)
    return tracer.trace(probe, folder / "trace", timeout=60, on_progress=heard)
