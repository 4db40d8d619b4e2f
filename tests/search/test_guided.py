"""Guided search on devices made of arithmetic: what it probes, what it has traced first, and where it stops."""

from dataclasses import dataclass, replace

import pytest

from autotune.candidate import Candidate
from autotune.memory.device_overhead import DeviceOverhead
from autotune.memory.predictor import Predictor
from autotune.options import Limits
from autotune.outcome import Ok, Oom, Sample, StepTiming, Unsupported
from autotune.search import guided, prospects
from autotune.search.context import SearchContext
from autotune.search.graph_walk import GraphWalk
from autotune.search.guided import Guided
from autotune.search.ladder import Taken
from autotune.search.prospects import MARGIN
from autotune.search.sensitivity import neighbours
from autotune.search.shipped import load_space
from autotune.search.strategy import Done, Learn, Try, decide
from autotune.site import Site
from autotune.specs import DeviceFacts, DeviceSpeed, GlobalBatch, Goal
from autotune.testing.arithmetic import Arithmetic, timeline
from autotune.testing.grids import FACTS
from autotune.timing.speed_model import Expected
from autotune.trial import Trial
from autotune.units import MIB

UNIT = 16 * MIB
FACTORS = {"chunked": 0.9, "regional": 0.6, "eager": 1.4}
"""By what some values multiply the time of a micro-step."""


@dataclass(frozen=True)
class Techniques(Arithmetic):
    """The same device with techniques that change speed; `truth` says what a probe finds beyond the prediction."""

    truth: float = 1.0

    def in_units(self, unit):
        plain = super().in_units(unit)
        return Techniques(**{**vars(plain), "truth": self.truth})

    def of(self, candidate):
        """Return the device whose samples take what those of a candidate do."""
        return self

    def times(self, candidate):
        micro, step = super().times(candidate)
        for value in (candidate.loss, candidate.compile, candidate.attention):
            micro *= FACTORS.get(value, 1.0)
        return micro, step

    def outcome(self, candidate):
        found = super().outcome(candidate)
        if not isinstance(found, Ok):
            return found
        micro, step = (seconds * self.truth for seconds in self.times(candidate))
        sample = Sample(mean=micro, half_width=micro / 100, count=5)
        timing = StepTiming(
            micro_step=sample,
            last_micro_step=sample,
            optimizer_step=Sample(mean=step, half_width=None, count=1),
        )
        return found.model_copy(update={"timing": timing})


@dataclass(frozen=True)
class Vocabulary(Techniques):
    """The same, of a model whose logits are larger than all else, unless its loss is chunked."""

    logits: int = 0

    def in_units(self, unit):
        plain = super().in_units(unit)
        return Vocabulary(**{**vars(plain), "logits": unit * self.logits})

    def of(self, candidate):
        logits = 0 if candidate.loss == "chunked" else self.logits
        larger = {name: getattr(self, name) + logits for name in ("activations", "checkpointed")}
        return replace(self, **larger, logits=0)

    def outcome(self, candidate):
        return super(Vocabulary, self.of(candidate)).outcome(candidate)


def make_context(device, space="default", target=1600, simulated=False, **changes):
    goal = Goal(target=GlobalBatch(amount=target), seq_len=100, headroom=0.0)
    facts = DeviceFacts(
        kind="cuda", name="a GPU", torch_name="cuda:0", budget=device.budget, total=device.budget,
        dtypes=("bf16",), simulated=simulated,
    )  # fmt: skip
    context = SearchContext(
        space=load_space(space), base=Candidate(), goal=goal, tokens_per_sample=100, budget=device.budget,
        predictor=Predictor({}, DeviceOverhead("cpu", 0, 0)), speed=device, **changes,
    )  # fmt: skip
    return replace(context, site=Site(device=facts, machine=machine())) if simulated else context


def speed(**matrix_flops):
    """Return what a device was measured to reach, of which only matrix products matter here."""
    return DeviceSpeed(
        matrix_flops=matrix_flops, attention_flops=matrix_flops, elementwise_flops=1, memory=1, operator=1
    )


def machine():
    from autotune.site import MachineFacts

    return MachineFacts()


def search(device, context, verdicts=None, untraceable=lambda rung: False):
    """Search to the end; return what was probed, what was traced before each probe, and the end."""
    history, traced = (), []
    known = context
    while not isinstance(decision := Guided().propose(history, known), Done):
        rungs = decision.rungs if isinstance(decision, Learn) else (decision.candidate.rung(),)
        new = [rung for rung in rungs if not known.predictor.covers(rung) and rung not in known.untraceable]
        if new:
            predictor, cannot = known.predictor, set(known.untraceable)
            for rung in new:
                if untraceable(rung):
                    cannot.add(rung)
                else:
                    predictor = predictor.with_timeline(rung, timeline(device.of(rung), rung))
            known = known.informed(predictor, known.speed, frozenset(cannot))
            traced += new
            continue
        assert isinstance(decision, Try)
        outcome = (verdicts or {}).get(decision.candidate.rung()) or device.outcome(decision.candidate)
        history += (
            Trial(
                number=len(history) + 1, candidate=decision.candidate, node=decision.node, why=decision.why,
                outcome=outcome, seconds=1.0,
            ),
        )  # fmt: skip
        assert len(history) < 40
    return history, traced, decision


def roomy(**changes):
    return Techniques(budget=2000, **changes).in_units(UNIT)


def test_without_a_memory_model_it_walks_the_graph():
    device = roomy()
    context = replace(make_context(device), predictor=None)
    assert Guided().propose((), context) == GraphWalk().propose((), context)


def test_the_first_probe_is_at_the_largest_micro_batch_that_surely_fits():
    device = Techniques(budget=900).in_units(UNIT)
    history, _, _ = search(device, make_context(device, "basic"))
    assert history[0].candidate == Candidate(micro_batch=8)  # 300 + 8 x 50 of 900; 16 take 1,100
    assert isinstance(history[0].outcome, Ok)


@pytest.mark.parametrize("strategy", [GraphWalk(), Guided()])
def test_where_the_device_only_emulates_bf16_a_search_begins_in_what_it_computes_fastest(strategy):
    device = roomy()

    def first(space, **flops):
        return strategy.propose((), make_context(device, space, device_speed=speed(**flops)))

    assert first("default", fp32=4.0, bf16=8.0, fp16=1.0).candidate.precision == "bf16"
    emulated = first("default", fp32=4.0, bf16=0.5, fp16=1.0)
    assert emulated.candidate.precision == "fp32"
    assert "bf16 is emulated here, and matrix products in fp32 are 8.0 times as fast" in emulated.why
    assert first("default", fp32=4.0, bf16=0.5, fp16=8.0).candidate.precision == "fp16"  # a GPU before Ampere
    assert first("minimal", fp32=4.0, bf16=0.5, fp16=1.0).candidate.precision == "bf16"  # it has nothing else
    assert first("multi_gpu", fp32=4.0, bf16=0.5, fp16=8.0).candidate.precision == "fp32"


@pytest.mark.parametrize("only", ["eager", "sdpa", None])
def test_an_attention_that_sdpa_stands_for_is_not_tried_beside_it(only):
    """Some models have eager attention alone, or none: both names are one program, whose rungs were traced twice."""
    device = roomy()
    context = make_context(device, model=FACTS.model_copy(update={"attention": only}))
    attentions = {rung.attention for rung in context.rungs()}
    assert attentions == {rung.attention for rung in context.ladder.rungs}
    assert attentions == ({"sdpa"} if only == "eager" else {"sdpa", "eager"})
    steps = {step.value for step in neighbours(Candidate(micro_batch=8), context) if step.axis == "attention"}
    assert steps == (set() if only == "eager" else {"eager"})
    alone = replace(context, space=context.space.model_copy(update={"axes": {"attention": ("eager",)}}))
    assert {rung.attention for rung in alone.rungs()} == {"eager"}


def test_when_no_probe_is_left_nothing_more_is_traced():
    device = roomy()
    context = make_context(device)
    history, _, _ = search(device, context)
    learning = replace(
        context, predictor=context.predictor.with_timeline(Candidate(), timeline(device, Candidate()))
    )
    asked = Guided().propose(history[:1], learning)
    assert isinstance(asked, Learn)
    done = decide(Guided(), history[:1], replace(learning, limits=Limits(max_probes=1)))
    assert (done.reason, done.path, done.skipped) == ("max_probes", asked.path, asked.skipped)
    assert done.path, "the graph was walked to something that fits"


def test_what_is_emulated_does_not_compete():
    device = roomy()
    history, traced, _ = search(
        device, make_context(device, device_speed=speed(fp32=4.0, bf16=0.5, fp16=1.0))
    )
    assert {trial.candidate.precision for trial in history} == {"fp32"}
    assert {rung.precision for rung in traced} == {"fp32"}
    assert len(history) > 1


def test_what_is_predicted_fastest_is_probed_next_and_slower_rungs_never_are():
    device = roomy()
    history, _, done = search(device, make_context(device))
    best = min((trial for trial in history if isinstance(trial.outcome, Ok)), key=seconds_of(device))
    assert (best.candidate.compile, best.candidate.loss) == ("regional", "chunked")
    assert len(history) <= 4
    assert all(trial.candidate.attention == "sdpa" for trial in history)
    assert all(trial.candidate.offload == "none" for trial in history), "it saves memory that nobody lacks"
    assert done.reason == "settled"
    assert f"{MARGIN:.0%} faster" in done.why


def seconds_of(device):
    return lambda trial: device.times(trial.candidate)[0] / trial.candidate.micro_batch


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
    taken = {"none": Taken(100, 50), "full": Taken(120, 10)}
    ladder = context.ladder
    sizes = {
        chunked: ladder.guess_size(
            Candidate(checkpointing="full", loss=chunked), 500, lambda rung: taken[rung.checkpointing]
        )
        for chunked in ("full", "chunked")
    }
    assert sizes == {"full": 38, "chunked": 38}
    assert ladder.guess_size(Candidate(loss="chunked", compile="regional"), 90, lambda _: Taken(100, 50)) == 0
    # Full offload stands over checkpointing, where it may; nothing tells of it over a model that is not checkpointed.
    assert (
        ladder.guess_size(Candidate(offload="full", checkpointing="full"), 500, lambda _: Taken(1, 1)) == 499
    )
    assert (
        ladder.guess_size(Candidate(offload="full", compile="regional"), 500, lambda _: Taken(1, 1)) is None
    )


def test_a_probe_that_would_not_save_its_own_time_in_the_training_is_not_made():
    device = roomy()
    context = replace(make_context(device), limits=Limits(training_time=20.0))
    history, traced, done = search(device, context)
    assert all(trial.candidate.compile == "none" for trial in history)
    assert history[-1].candidate.loss == "chunked", "the loss that is chunked costs a second"
    assert not [rung for rung in traced if rung.compile != "none"], "its compilation alone takes longer"
    assert done.reason == "settled"
    assert "--training-time" in done.why


def test_a_combination_whose_probe_would_not_save_its_own_time_is_not_traced():
    device = roomy()
    context = make_context(device, target=16_000)

    def combined(training_time):
        limits = Limits(training_time=training_time)
        history, traced, _ = search(device, replace(context, limits=limits))
        return len(combinations(context, traced)), history[-1].candidate

    assert combined(3600.0)[0] >= 15
    none, last = combined(20.0)
    assert none == 0, "steps of each take longer than a training of 20 s would save"
    assert last.loss == "chunked", "what one technique alone gives is looked at all the same"


def test_where_nothing_fits_that_the_graph_leads_to_the_whole_space_is_looked_at():
    device = Vocabulary(budget=900, logits=1000).in_units(UNIT)
    history, traced, done = search(device, make_context(device))
    assert all(isinstance(trial.outcome, Ok) for trial in history), "no probe of what is known not to fit"
    assert all(trial.candidate.loss == "chunked" for trial in history)
    assert history[0].node == "guided"
    assert history[-1].candidate.compile == "regional", "once something fits the search is for the fastest"
    assert done.reason == "settled"
    assert len(traced) < len(make_context(device).ladder.rungs) / 3


def test_where_it_was_not_memory_that_was_lacking_the_rest_of_the_space_is_not_tried():
    device = roomy()
    context = make_context(device)
    refused = Unsupported(reason="no such kernel")
    verdicts = dict.fromkeys(context.ladder.rungs, refused)
    history, _, done = search(device, context, verdicts)
    assert all(trial.node != "guided" for trial in history), "nothing but the graph"
    assert done.reason == "exhausted"


@pytest.mark.parametrize("simulated", [False, True])
def test_that_nothing_fits_is_said_after_one_probe_where_nothing_of_the_space_does(simulated):
    device = Vocabulary(budget=900, logits=1000).in_units(UNIT)
    history, traced, done = search(device, make_context(device, "basic", simulated=simulated))
    assert [type(trial.outcome) for trial in history] == [Oom]
    assert done.reason == "exhausted"
    assert len(traced) == len(set(traced))


def test_so_it_is_where_probes_of_the_graph_ran_out_of_memory_that_were_predicted_to_fit():
    device = Techniques(budget=900).in_units(UNIT)
    context = make_context(device)
    over = Oom(phase="forward", requested=100 * UNIT, free=UNIT)
    history, _, _ = search(
        device, context, {rung: over for rung in context.ladder.rungs if rung.loss == "full"}
    )
    assert any(trial.node != "guided" for trial in history)
    fitting = [trial.candidate for trial in history if isinstance(trial.outcome, Ok)]
    assert fitting
    assert all(candidate.loss == "chunked" for candidate in fitting)


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


def test_of_micro_batches_that_are_as_fast_the_one_with_the_shortest_probe_is_taken():
    device = Techniques(budget=2000, overhead=0.0, per_sample=30.0).in_units(UNIT)
    history, _, _ = search(device, make_context(device, "basic", target=160_000))
    assert history[0].candidate.micro_batch < 4  # 32 fit


def test_one_probe_tells_how_fast_the_device_is_and_not_which_rung_wins():
    slow = roomy(truth=3.0)
    probed, _, _ = search(slow, make_context(slow))
    quick = roomy(truth=0.5)
    assert [trial.candidate for trial in search(quick, make_context(quick))[0]] == [
        trial.candidate for trial in probed
    ]


def test_checkpointing_is_tried_where_memory_binds_and_a_larger_micro_batch_pays():
    # 2 fit; the overhead shrinks with more.
    device = replace(Techniques(budget=420).in_units(UNIT), overhead=0.3)
    history, _, _ = search(device, make_context(device, "basic"))
    best = min((trial for trial in history if isinstance(trial.outcome, Ok)), key=seconds_of(device))
    assert best.candidate.checkpointing == "full"
    assert best.candidate.micro_batch > 2


def test_a_rung_that_cannot_be_traced_is_probed_where_the_same_without_it_fits():
    device = roomy()
    history, _, _ = search(device, make_context(device), untraceable=lambda rung: rung.compile != "none")
    best = min((trial for trial in history if isinstance(trial.outcome, Ok)), key=seconds_of(device))
    assert best.candidate.compile == "regional"
    assert not [trial for trial in history if isinstance(trial.outcome, Oom)]


def test_a_rung_that_is_not_supported_is_not_tried_at_another_micro_batch():
    device = roomy()
    refused = {
        Candidate(compile="regional", loss=loss, optimizer_kernel=kernel): Unsupported(reason="no compiler")
        for loss in ("full", "chunked")
        for kernel in ("fused", "foreach")
    }
    history, _, _ = search(device, make_context(device), verdicts=refused)
    rungs = [trial.candidate.rung() for trial in history if isinstance(trial.outcome, Unsupported)]
    assert rungs
    assert len(set(rungs)) == len(rungs)


def test_on_a_simulated_device_every_prediction_comes_true_and_the_best_price_is_probed_at_once():
    device = roomy()
    history, _, _ = search(device, make_context(device, simulated=True))
    assert len(history) == 2
    assert (history[1].candidate.compile, history[1].candidate.loss) == ("regional", "chunked")


def test_what_cannot_run_where_probes_do_does_not_compete():
    device = roomy()
    context = make_context(device)
    refused = frozenset(rung for rung in context.ladder.rungs if rung.compile != "none")
    history, traced, _ = search(device, Barred(context, refused).context)
    assert not [rung for rung in (*traced, *(trial.candidate for trial in history)) if rung.compile != "none"]


class Barred:
    """A context whose refused rungs stay refused when something is learnt."""

    def __init__(self, context, refused):
        class Kept(SearchContext):
            def informed(self, predictor, speed, untraceable=frozenset(), refused=refused):
                return super().informed(predictor, speed, untraceable, refused)

        fields = {name: getattr(context, name) for name in context.__dataclass_fields__}
        self.context = Kept(**{**fields, "refused": refused})


@pytest.mark.parametrize("budget", [445, 600, 900])
def test_the_fastest_of_all_that_fits_is_found_in_a_few_probes(budget):
    device = Techniques(budget=budget).in_units(UNIT)
    context = make_context(device)
    history, _, _ = search(device, context)

    def seconds(candidate):
        micro, step = device.times(candidate)
        return context.batches(candidate).accumulation(candidate.micro_batch).steps * micro + step

    everything = (rung.at(size) for rung in context.ladder.rungs for size in context.batches(rung).useful)
    oracle = min(seconds(one) for one in everything if isinstance(device.outcome(one), Ok))
    found = min(seconds(trial.candidate) for trial in history if isinstance(trial.outcome, Ok))
    assert found <= 1.01 * oracle
    assert len(history) <= 6
    assert not [trial for trial in history if isinstance(trial.outcome, Oom)]


def test_while_nothing_fits_what_surely_does_comes_before_what_may():
    device = Techniques(budget=445).in_units(UNIT)  # plain takes 450, which is within the interval
    history, _, _ = search(device, make_context(device))
    assert history[0].candidate.checkpointing == "full"
    assert "micro-batch 1 may not fit, and this should" in history[0].why


def test_what_is_more_likely_to_fit_than_not_is_tried():
    # 8 samples take 700 MiB; what a device takes is known to some 50.
    device = Techniques(budget=804).in_units(MIB)
    history, _, _ = search(device, make_context(device, "basic"))
    assert max(trial.candidate.micro_batch for trial in history) == 8


@pytest.mark.parametrize("budget", [420, 900, 2000])
def test_no_probe_runs_out_of_memory_where_the_memory_model_is_right(budget):
    device = Techniques(budget=budget).in_units(UNIT)
    history, _, _ = search(device, make_context(device))
    assert not [trial for trial in history if isinstance(trial.outcome, Oom)]
