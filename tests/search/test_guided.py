"""Guided search on devices made of arithmetic: what it probes, what it has traced first, and where it stops."""

from dataclasses import dataclass, replace

import pytest

from autotune.candidate import Candidate
from autotune.memory.device_overhead import DeviceOverhead
from autotune.memory.predictor import Predictor
from autotune.options import Limits
from autotune.outcome import Ok, Oom, Sample, StepTiming, Unsupported
from autotune.search.context import SearchContext
from autotune.search.graph_walk import GraphWalk
from autotune.search.guided import Guided
from autotune.search.prospects import MARGIN
from autotune.search.sensitivity import neighbours
from autotune.search.shipped import load_space
from autotune.search.strategy import Done, TraceFirst, Try, decide
from autotune.site import Site
from autotune.specs import DeviceFacts, DeviceSpeed, GlobalBatch, Goal
from autotune.testing.arithmetic import Arithmetic, timeline
from autotune.testing.grids import FACTS
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
        rungs = decision.rungs if isinstance(decision, TraceFirst) else (decision.candidate.rung(),)
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
    assert isinstance(asked, TraceFirst)
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


def test_a_probe_that_would_not_save_its_own_time_in_the_training_is_not_made():
    device = roomy()
    context = replace(make_context(device), limits=Limits(training_time=20.0))
    history, traced, done = search(device, context)
    assert all(trial.candidate.compile == "none" for trial in history)
    assert history[-1].candidate.loss == "chunked", "the loss that is chunked costs a second"
    assert not [rung for rung in traced if rung.compile != "none"], "its compilation alone takes longer"
    assert done.reason == "settled"
    history, _, done = search(device, replace(context, limits=Limits(training_time=5.0)))
    assert len(history) == 1
    assert "--training-time" in done.why


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
