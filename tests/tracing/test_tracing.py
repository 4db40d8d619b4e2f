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
from autotune.probe.exit import Exit
from autotune.probe.protocol import Result
from autotune.techniques import check
from autotune.tracing import cache
from autotune.tracing.cache import TraceCache
from autotune.tracing.client import LocalTracer
from autotune.tracing.import_closure import import_closure
from tests.data.requests import OWN, family, request
from tests.tracing.workers import TIMELINE, TRACED, Launch


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
