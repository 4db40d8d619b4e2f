"""Many rungs: which workers are launched for them, and what is composed of what these trace."""

from __future__ import annotations

from functools import partial

from autotune.candidate import Candidate
from autotune.devices.cpu import threads_variable
from autotune.probe.protocol import TraceAnswer, TracedRung
from autotune.tracing import cache
from autotune.tracing.cache import TraceCache
from autotune.tracing.client import LocalTracer
from autotune.tracing.shares import shares
from tests.data.requests import family, request
from tests.tracing.ladder import LADDER, PASSES
from tests.tracing.workers import TIMELINE, WORKING, Launch, Worker, ask


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


def test_what_is_composed_is_not_traced(tmp_path):
    worker = Worker()
    tracer = LocalTracer(TraceCache(tmp_path / "cache"), worker, workers=1)
    found = ask(tracer, LADDER, tmp_path)
    assert [candidate for candidate, trace in found.items() if trace.composed] == [*LADDER[4:6], *LADDER[7:]]
    assert found[LADDER[8]].timeline.facts["rung"] == LADDER[8].key()
    assert found[LADDER[8]].seconds == 0
    ((asked, _),) = worker.launched
    assert [asked.candidate, *asked.also] == [LADDER[0], LADDER[1], LADDER[2], LADDER[3], LADDER[6]]
    again = ask(LocalTracer(TraceCache(tmp_path / "cache"), worker, workers=1), LADDER, tmp_path)
    assert all(trace.cached != trace.composed for trace in again.values())
    assert [trace.composed for trace in again.values()] == [trace.composed for trace in found.values()]
    assert [trace.timeline for trace in again.values()] == [trace.timeline for trace in found.values()]
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
    kindred = partial(TraceCache(shared).kindred, two, threads_variable(ranks=1))
    at_hand = {one for one, _ in kindred()}
    assert at_hand >= {*LADDER[:3], PASSES[1], *ranked}
    assert at_hand.isdisjoint(LADDER[4:6]), "an optimizer over known passes is composed again"
    assert {one for one, _ in kindred(set(ranked))} == at_hand - set(ranked), (
        "what is known is not read again"
    )
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
