"""Traces as the tuner gets them: from a worker, from the cache, or not at all and why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from autotune.candidate import Candidate
from autotune.outcome import Crash, Unsupported
from autotune.probe.exit import Exit, Report
from autotune.probe.protocol import Progress, Result, TraceAnswer, TracedRung
from autotune.techniques import check
from autotune.timeline.op_counts import OpCounts, Operators
from autotune.timeline.step_events import Slots, StepEvents
from autotune.timeline.timeline import Timeline
from autotune.tracing import cache
from autotune.tracing.cache import TraceCache
from autotune.tracing.client import LocalTracer
from autotune.tracing.import_closure import import_closure
from autotune.tracing.shares import shares
from tests.data.requests import OWN, family, request
from tests.tracing.ladder import LADDER, PASSES

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


@pytest.fixture
def traced(tmp_path):
    """Return a function that traces with a launcher, and a cache that outlives it."""

    def run(launch, model=None, **candidate):
        tracer = LocalTracer(TraceCache(tmp_path / "cache"), launch)
        probe = request(model or family("gpt2"), tmp_path, **candidate)
        return tracer.trace(probe, tmp_path / "trace", timeout=60)[probe.candidate]

    return run


def made(timeline=TIMELINE):
    return Launch(TRACED, timeline.pack())


def test_a_trace_is_made_once_for_each_rung(traced, tmp_path):
    launch = made()
    first = traced(launch)
    assert first.timeline == TIMELINE
    assert first.seconds == 1.5
    again = traced(launch, micro_batch=7, expandable_segments=False)
    assert again.timeline == TIMELINE
    assert again.seconds == 0
    assert (first.cached, again.cached) == (False, True)
    assert len(launch.launched) == 1
    assert launch.launched[0][0].kind == "trace"
    assert launch.launched[0][1]["data_limit"] is None
    assert not (tmp_path / "trace" / "scratch").exists()
    assert traced(launch, checkpointing="full").seconds == 1.5
    assert len(launch.launched) == 2


def test_other_versions_and_other_code_trace_again(traced, monkeypatch):
    launch = made()
    traced(launch)
    monkeypatch.setattr(cache, "installed", lambda _: "99")
    assert traced(launch).seconds
    monkeypatch.setattr(cache, "_code", lambda: "mended")
    assert traced(launch).seconds
    assert traced(launch, precision="fp8").seconds
    assert traced(launch, precision="fp8").seconds == 0
    monkeypatch.setattr(check, "installed", {"torchao": "0.99"}.get)
    assert traced(launch, precision="fp8").seconds
    assert traced(launch).seconds == 0


def test_ranks_that_share_the_cores_are_traced_with_their_share(tmp_path, monkeypatch):
    """Some of a processor's kernels take room for each thread."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    launch = made()

    def seconds(ranks):
        tracer = LocalTracer(TraceCache(tmp_path / "cache"), launch, ranks=ranks)
        probe = request(family("gpt2"), tmp_path)
        return tracer.trace(probe, tmp_path / "trace", timeout=60)[probe.candidate].seconds

    assert [seconds(1), seconds(2), seconds(4), seconds(2)] == [1.5, 1.5, 1.5, 0]
    threads = [options["environment"].get("OMP_NUM_THREADS") for _, options in launch.launched]
    assert threads == [None, "4", "2"]


def test_a_trace_depends_on_all_code_that_the_worker_imports():
    """What is imported late, and two modules that an earlier key left out, are of it; the tuner's own loop is not."""
    hashed = import_closure(cache.WORKER[-1])
    for name in (
        "techniques.deepspeed_config",
        "timeline.step_events",
        "worker.tracing.trace",
        "worker.tracing.fakes.deepspeed",
        "worker.techniques.adapters",
        "worker.__main__",
    ):
        assert f"autotune.{name}" in hashed
    assert not {"autotune.run.loop", "autotune.cli", "autotune.api"} & set(hashed)


def test_the_import_closure_is_what_python_imports():
    script = (
        "import sys, autotune.worker.tracing.fake_training\n"
        "print(*(name for name in sys.modules if name.partition('.')[0] == 'autotune'))"
    )
    imported = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout
    assert set(imported.split()) <= set(import_closure("autotune.worker.tracing.fake_training"))


@pytest.mark.parametrize("name", ["autotune.techniques.deepspeed_config", "autotune.timeline.step_events"])
def test_a_change_in_what_the_tracing_code_imports_makes_another_key(name, monkeypatch, tmp_path):
    before = cache._code.__wrapped__()
    changed = tmp_path / "changed.py"
    changed.write_text("# mended")
    files = {**import_closure(cache.WORKER[-1]), name: changed}
    monkeypatch.setattr(cache, "import_closure", lambda _: files)
    assert cache._code.__wrapped__() != before


def test_a_users_own_code_is_never_cached(traced, tmp_path):
    launch = made()
    assert traced(launch, OWN).seconds
    assert traced(launch, OWN).seconds
    assert not (tmp_path / "cache").exists()


def test_a_timeline_of_one_micro_batch_is_found_for_that_one_alone(traced):
    launch = made(replace(TIMELINE, exact=4))
    assert traced(launch, micro_batch=4).seconds
    assert traced(launch, micro_batch=4).seconds == 0
    assert traced(launch, micro_batch=5).seconds


def test_a_damaged_cache_costs_one_more_trace(traced, tmp_path):
    launch = made()
    traced(launch)
    (file,) = (tmp_path / "cache").glob("*/*.trace")
    for kept in (30, -30):  # of its first line, and of all
        file.write_bytes(file.read_bytes()[:kept])
        assert traced(launch).seconds
        assert traced(launch).seconds == 0


def test_a_cache_that_cannot_be_written_costs_nothing_else(traced, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert traced(made()).timeline == TIMELINE


def test_the_cache_keeps_the_newest(traced, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "KEPT", 2)
    for seq_len in (8, 16, 24):
        probe = request(family("gpt2"), tmp_path, seq_len=seq_len)
        TraceCache(tmp_path / "cache").keep(probe, TIMELINE)
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        (Launch(Result(outcome=Unsupported(reason="operator x needs values"))), "operator x needs values"),
        (Launch(Result(outcome=Crash(reason="exception", phase="forward", message="no"))), "tracing failed: no"),
        (Launch(None, ending=Exit(timed_out=True, signal=9, seconds=60)), "tracing ended with Timeout"),
        (Launch(TRACED), "the trace cannot be read"),
        (Launch(TRACED, b"{}"), "the trace cannot be read"),
    ],
)  # fmt: skip
def test_a_rung_without_a_trace_says_why(traced, launch, reason):
    trace = traced(launch)
    assert trace.timeline is None
    assert trace.reason.startswith(reason)


def test_one_worker_traces_all_that_is_missing(tmp_path):
    launch = made()
    tracer = LocalTracer(TraceCache(tmp_path / "cache"), launch)
    probe = request(family("gpt2"), tmp_path)
    others = tuple(probe.candidate.model_copy(update={"offload": name}) for name in ("optimizer", "full"))
    tracer.trace(probe, tmp_path / "trace", timeout=60)
    found = tracer.trace(probe.model_copy(update={"also": others}), tmp_path / "trace", timeout=60)
    assert set(found) == {probe.candidate, *others}
    assert [found[name].seconds for name in (probe.candidate, *others)] == [0, 0.75, 0.75]
    asked = launch.launched[-1][0]
    assert (asked.candidate, *asked.also) == others


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


def test_many_rungs_share_few_workers_and_say_how_far_they_are(tmp_path):
    worker, heard = Worker(), []
    tracer = LocalTracer(TraceCache(tmp_path / "cache"), worker, workers=2)
    wanted = [*PASSES, Candidate(loss="chunked"), *LADDER[3:6], *LADDER[7:]]
    found = ask(tracer, wanted, tmp_path, heard.append)
    assert len(worker.launched) == 2
    assert list(found) == list(dict.fromkeys(wanted))
    traced = [asked for probe, _ in worker.launched for asked in (probe.candidate, *probe.also)]
    assert {progress.traced.candidate for progress in heard} >= set(traced)


def test_what_nobody_asked_for_is_traced_for_others_and_not_told(tmp_path):
    replicated = [one.model_copy(update={"sharding": "ddp"}) for one in PASSES]
    worker = Worker()
    found = ask(LocalTracer(TraceCache(tmp_path / "cache"), worker, workers=1), replicated, tmp_path)
    assert list(found) == replicated
    ((asked, _), *_) = worker.launched
    assert {asked.candidate, *asked.also} == {replicated[0], *PASSES}
    worker.launched.clear()
    ask(LocalTracer(TraceCache(tmp_path / "cache"), worker, workers=1), replicated, tmp_path)
    assert not worker.launched


def test_what_is_composed_is_neither_traced_nor_composed_again(tmp_path):
    worker = Worker()
    tracer = LocalTracer(TraceCache(tmp_path / "cache"), worker, workers=1)
    found = ask(tracer, LADDER, tmp_path)
    assert [candidate for candidate, trace in found.items() if trace.composed] == [*LADDER[4:6], *LADDER[7:]]
    assert found[LADDER[8]].timeline.facts["rung"] == LADDER[8].key()
    assert found[LADDER[8]].seconds == 0
    ((asked, _),) = worker.launched
    assert [asked.candidate, *asked.also] == [LADDER[0], LADDER[1], LADDER[2], LADDER[3], LADDER[6]]
    again = ask(tracer, LADDER, tmp_path)
    assert all(trace.cached for trace in again.values())
    assert len(worker.launched) == 1


def test_what_others_have_traced_is_composed_from_the_cache_they_share(tmp_path, monkeypatch):
    """So the jobs of a cluster go on from each other, and a run from those before it."""
    worker, shared = Worker(), tmp_path / "cache"

    def anew(candidates, **fields):
        worker.launched.clear()
        found = ask(LocalTracer(TraceCache(shared), worker, workers=1), candidates, tmp_path, **fields)
        return found, [one for asked, _ in worker.launched for one in (asked.candidate, *asked.also)]

    anew(LADDER[:3])
    assert anew([PASSES[1]])[1] == [PASSES[1]]
    found, launched = anew(LADDER[4:6])
    assert not launched
    assert all(trace.composed for trace in found.values())
    ranked = [one.model_copy(update={"sharding": "ddp"}) for one in PASSES[:2]]
    assert anew(ranked, world_size=2)[1] == [ranked[0]], "the others are those of one device"
    two = request(family("gpt2"), tmp_path).model_copy(update={"world_size": 2})
    assert {one for one, _ in TraceCache(shared).kindred(two)} >= {*LADDER[:3], *LADDER[4:6], *ranked}
    loaded = LADDER[7].model_copy(update={"num_workers": 2})
    assert anew([loaded, loaded.with_plainest_optimizer()])[1] == [loaded.with_plainest_optimizer()]
    assert anew([LADDER[8]], seq_len=48)[1] == [LADDER[8]], "another goal"
    monkeypatch.setattr(cache, "packages", lambda _: {"a library": "of another version"})
    assert anew([LADDER[4]])[1] == [LADDER[4]]


def test_what_refuses_passes_refuses_them_with_any_optimizer(tmp_path):
    told = [TracedRung(candidate=one, reason="no kernels") for one in PASSES[1:]]
    told += [TracedRung(candidate=one, file="timeline.trace") for one in (PASSES[0], *LADDER[1:3])]
    launch = Launch(TraceAnswer(rungs=told), WORKING.pack())
    found = ask(LocalTracer(TraceCache(tmp_path / "cache"), launch, workers=1), LADDER, tmp_path)
    assert len(launch.launched) == 1
    assert {one.checkpointing for one, trace in found.items() if trace.reason == "no kernels"} == {
        "selective",
        "full",
    }


def test_what_is_asked_later_is_composed_of_what_was_traced_before(tmp_path):
    worker, leaving = Worker(), [one.model_copy(update={"offload": "gradients"}) for one in PASSES]
    tracer = LocalTracer(TraceCache(tmp_path / "cache"), worker, workers=1)
    ask(tracer, LADDER[:3], tmp_path)
    ask(tracer, [LADDER[4]], tmp_path)
    found = ask(tracer, [*LADDER[7:], LADDER[5]], tmp_path)
    assert all(trace.composed for trace in found.values())
    ask(tracer, leaving[1:], tmp_path)
    launched = [(asked.candidate, *asked.also) for asked, _ in worker.launched]
    # One more of the same passes comes of the two that are at hand; of gradients that leave, one is traced over them.
    assert launched == [tuple(LADDER[:3]), (PASSES[1],), (PASSES[2],), (leaving[1],)]


def test_what_refuses_an_optimizer_that_nobody_asked_for_refuses_no_other(tmp_path):
    asked = [one for first in (3, 6) for one in LADDER[first + 1 : first + 3]]
    told = [TracedRung(candidate=one, reason="no fused kernel") for one in PASSES]
    told += [TracedRung(candidate=one, file="timeline.trace") for one in asked]
    launch = Launch(TraceAnswer(rungs=told), WORKING.pack())
    found = ask(LocalTracer(TraceCache(tmp_path / "cache"), launch, workers=1), asked, tmp_path)
    assert all(trace.timeline is not None for trace in found.values())


def test_what_cannot_be_composed_is_traced_behind_the_others(tmp_path):
    worker = Worker(timeline=TIMELINE)  # which knows no work
    found = ask(LocalTracer(TraceCache(tmp_path / "cache"), worker, workers=1), LADDER[:5], tmp_path)
    assert not any(trace.composed for trace in found.values())
    assert [asked.candidate for asked, _ in worker.launched] == [LADDER[0], LADDER[4]]


def test_a_worker_that_was_ended_costs_what_it_had_not_traced_yet(tmp_path):
    worker = Worker(ends_before=PASSES[1])
    found = ask(LocalTracer(TraceCache(tmp_path / "cache"), worker, workers=1), PASSES, tmp_path)
    assert all(trace.timeline == WORKING for trace in found.values())
    assert [(probe.candidate, *probe.also) for probe, _ in worker.launched] == [
        tuple(PASSES),
        tuple(PASSES[1:]),
    ]


def test_a_trace_that_ends_its_worker_costs_no_other(tmp_path):
    wanted = [
        Candidate(attention=value) for value in ("sdpa", "eager", "flash_attention_2", "flex_attention")
    ]
    worker = Worker(dies_at=wanted[1:2])
    found = ask(LocalTracer(TraceCache(tmp_path / "cache"), worker, workers=1), wanted, tmp_path)
    assert [one for one in wanted if found[one].timeline is None] == wanted[1:2]
    assert "SIGSEGV" in found[wanted[1]].reason
    assert [(asked.candidate, *asked.also) for asked, _ in worker.launched] == [
        tuple(wanted),
        tuple(wanted[2:]),
    ]


def test_workers_that_trace_nothing_or_end_again_and_again_are_given_up(tmp_path):
    kernels = ("sdpa", "eager", "flash_attention_2", "flex_attention")
    wanted = [
        Candidate(attention=kernel, activation_offload=moved) for kernel in kernels for moved in (False, True)
    ]
    (share,) = shares(wanted, 1)
    for dies_at, launches in ((wanted, 1), (share[1::2], 3)):
        worker = Worker(dies_at=dies_at)
        folder = tmp_path / str(launches)
        found = ask(LocalTracer(TraceCache(folder / "cache"), worker, workers=1), wanted, folder)
        assert len(worker.launched) == launches
        assert set(found) == set(wanted)
        assert all(found[one].reason for one in dies_at)


def test_a_real_worker_traces_a_tiny_model_and_says_what_it_cannot(tmp_path):
    tracer = LocalTracer(TraceCache(tmp_path / "cache"))
    probe = request(family("gpt2"), tmp_path)
    checkpointed = Candidate(checkpointing="full")
    found = tracer.trace(probe.model_copy(update={"also": (checkpointed,)}), tmp_path / "trace", timeout=120)
    plain, other = found[probe.candidate].timeline, found[checkpointed].timeline
    assert plain is not None, found[probe.candidate].reason
    assert plain.covers(1)
    assert plain.covers(1000)
    assert plain.facts["rung"] == Candidate().key()
    assert other.allocated(8) < plain.allocated(8)
    one = tracer.trace(probe.model_copy(update={"candidate": checkpointed}), tmp_path / "trace", timeout=120)
    assert one[checkpointed].timeline == other


def test_a_trace_that_something_outside_ended_is_made_again_and_at_last_unknown(tmp_path):
    killed = Launch(None, ending=Exit(signal=signal.SIGKILL, oom_kills=0, seconds=1))
    probe = request(family("gpt2"), tmp_path)
    trace = LocalTracer(TraceCache(tmp_path / "cache"), killed).trace(probe, tmp_path / "probe", timeout=1.0)
    assert len(killed.launched) == 3
    assert trace[probe.candidate].lost.cause == "worker"
    assert "ended from outside, 3 times" in trace[probe.candidate].reason
