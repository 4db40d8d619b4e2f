"""Which rungs guided search has traced before it probes, and which combinations of techniques it leaves untraced."""

from dataclasses import replace

from autotune.candidate import Candidate
from autotune.options import Limits
from autotune.search import guided, prospects
from autotune.search.guided import Guided
from autotune.search.ladder import MemoryLine
from autotune.search.room import Room
from autotune.testing.arithmetic import timeline
from autotune.timing.speed_model import AXIS, Expected
from autotune.trial import Trial
from tests.search.test_guided import UNIT, Techniques, make_context, roomy, search


def combinations(context, rungs):
    """Return the rungs that are made of several parts."""
    return [
        rung
        for rung in rungs
        if {*context.ladder.parts(rung)} - {rung} and rung not in context.ladder.parts(rung)
    ]


def test_a_combination_is_traced_only_after_the_techniques_that_it_is_made_of():
    device = roomy()
    _, traced, _ = search(device, make_context(device))
    ladder = make_context(device).ladder
    for position, rung in enumerate(traced):
        assert rung in ladder.parts(rung) or set(ladder.parts(rung)) <= set(traced[:position])
    assert len(traced) < len(ladder.rungs) / 4


def test_a_combination_is_traced_only_where_it_may_come_before_what_would_be_probed_next(monkeypatch):
    device = Techniques(budget=900).in_units(UNIT)
    context = make_context(device)

    def combined():
        _, traced, _ = search(device, context)
        return len(combinations(context, traced))

    monkeypatch.setattr(guided, "TRACED_AT_A_TIME", 8)  # so that what is traced first is known to the rest
    few = combined()
    monkeypatch.setattr(prospects, "COMBINED", 0.3)  # as uncertain as a technique that no probe has shown
    many = combined()
    assert many >= 2 * few > 0


def test_a_combination_that_cannot_fit_by_what_its_techniques_take_is_not_traced():
    context = make_context(roomy())
    taken = {"none": MemoryLine(100, 50), "full": MemoryLine(120, 10)}
    ladder = context.ladder
    sizes = {
        chunked: ladder.guess_size(
            Candidate(checkpointing="full", loss=chunked), 500, lambda rung: taken[rung.checkpointing]
        )
        for chunked in ("full", "chunked")
    }
    assert sizes == {"full": 38, "chunked": 38}
    assert (
        ladder.guess_size(Candidate(loss="chunked", compile="regional"), 90, lambda _: MemoryLine(100, 50))
        == 0
    )
    # Full offload stands over checkpointing, where it may; nothing tells of it over a model that is not checkpointed.
    assert (
        ladder.guess_size(Candidate(offload="full", checkpointing="full"), 500, lambda _: MemoryLine(1, 1))
        == 499
    )
    assert (
        ladder.guess_size(Candidate(offload="full", compile="regional"), 500, lambda _: MemoryLine(1, 1))
        is None
    )


def test_a_combination_whose_probe_would_not_save_its_own_time_is_not_traced():
    device = roomy()
    context = make_context(device, target=16_000)

    def combined(training_time):
        limits = Limits(training_time=training_time)
        history, traced, _ = search(device, replace(context, limits=limits))
        return len(combinations(context, traced)), history[-1].candidate

    assert combined(3600.0)[0] >= 5
    none, last = combined(20.0)
    assert none == 0, "steps of each take longer than a training of 20 s would save"
    assert last.loss == "chunked", "what one technique alone gives is looked at all the same"


def test_what_the_fastest_would_leave_behind_is_not_traced_with_it(monkeypatch):
    context = make_context(roomy())
    fastest, close, behind, unsure = context.ladder.rungs[1:5]
    expected = {fastest: (100.0, 0.05), close: (120.0, 0.05), behind: (125.0, 0.05), unsure: (125.0, 0.1)}

    def guessed(*_):
        return [
            prospects.Prospect(rung, Expected(*guess), improvement=0.5, cost=0.0, traced=False)
            for rung, guess in expected.items()
        ]

    monkeypatch.setattr(prospects.Prospects, "to_trace", guessed)
    predictor = context.predictor.with_timeline(Candidate(), timeline(roomy(), Candidate()))
    known = context.informed(predictor, context.speed)
    first = Guided().propose((), known)
    tried = Trial(
        number=1,
        candidate=first.candidate,
        node="start",
        why="",
        outcome=roomy().outcome(first.candidate),
        seconds=1.0,
    )
    assert Guided().propose((tried,), known).rungs == (fastest, close, unsure)


def test_of_what_a_simulated_device_prices_only_how_techniques_combine_is_uncertain(monkeypatch):
    device = Techniques(budget=900).in_units(UNIT)
    context = make_context(device, simulated=True)
    seen = set()
    to_trace = prospects.Prospects.to_trace

    def watched(self, rungs, best, leader):
        found = to_trace(self, rungs, best, leader)
        combined = combinations(context, [one.candidate.rung() for one in found])
        seen.update(
            (leader is None, one.expected.spread) for one in found if one.candidate.rung() in combined
        )
        return found

    monkeypatch.setattr(prospects.Prospects, "to_trace", watched)
    search(device, context)
    assert seen == {(False, prospects.COMBINED), (True, prospects.COMBINED)}


def test_probes_that_come_out_as_predicted_make_no_surer_of_what_was_never_priced():
    device = roomy()
    priced = [Candidate(micro_batch=16, **one) for one in ({}, {"loss": "chunked"}, {"compile": "regional"})]
    eager = Candidate(micro_batch=16, attention="eager")
    history = tuple(
        Trial(number=number, candidate=one, node="", why="", outcome=device.outcome(one), seconds=1.0)
        for number, one in enumerate(priced, start=1)
    )

    def spread_of_eager(history, *traced):
        """Return how unsure a search is of it, before it is traced or afterwards."""
        context = make_context(device)
        traces = {rung: timeline(device, rung) for rung in (one.rung() for one in (*priced, *traced))}
        context = context.informed(context.predictor.with_timelines(traces), context.speed)
        room = Room(history, context, context.predictor, False)
        looking = prospects.Prospects(history, context, room, False)
        rungs = looking.rungs(priced[0])
        found = looking.to_probe(rungs, 1.0) if traced else looking.to_trace(rungs, 1.0, None)
        return next(one.expected.spread for one in found if one.candidate.rung() == eager.rung())

    assert spread_of_eager(history, eager) < 0.8 * spread_of_eager(history[:1], eager)
    assert spread_of_eager(history) >= 0.95 * AXIS["attention"]
    assert spread_of_eager(history) > 1.3 * spread_of_eager(history, eager)
