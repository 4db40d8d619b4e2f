"""The memory model of a training without a trace: a line for each rung, by its probes alone."""

import pytest

from autotune.candidate import Candidate
from autotune.memory.probe_lines import ProbeLines
from autotune.outcome import Breakdown, Memory, Ok, Oom, Sample, StepTiming
from autotune.search.graph_walk import GraphWalk
from autotune.search.strategy import Try
from autotune.trial import Trial

MIB = 2**20
SAMPLE = Sample(mean=0.1, half_width=0.001, count=5)


def ok(size, peak, beside=100 * MIB, budget=1000 * MIB):
    part = Breakdown(
        parameters=10 * MIB, gradients=10 * MIB, optimizer_state=20 * MIB, activations=0, other=0
    )
    memory = Memory(
        allocated=int(peak - beside), reserved=int(peak), device_peak=int(peak), budget=budget, baseline=beside,
        breakdown=part,
    )  # fmt: skip
    timing = StepTiming(micro_step=SAMPLE, last_micro_step=SAMPLE, optimizer_step=SAMPLE)
    return Ok(memory=memory, timing=timing, phases=(), losses=(), accumulation_steps=1)


def history(*outcomes):
    return tuple(
        Trial(
            number=number,
            candidate=Candidate(micro_batch=size),
            node="n",
            why="",
            outcome=outcome,
            seconds=3.0,
        )
        for number, (size, outcome) in enumerate(outcomes, start=1)
    )


def peak(size):
    return (150 + 12 * size) * MIB


def learned(*sizes, budget=1000 * MIB):
    return ProbeLines().calibrated(history(*((size, ok(size, peak(size))) for size in sizes)), budget)


def test_nothing_is_said_of_a_rung_before_a_probe_of_it_has_fitted():
    known = ProbeLines().calibrated(history((4, Oom(phase="forward"))), 1000 * MIB)
    assert known.bounds(Candidate()) is None
    assert known.largest(Candidate(), 1000 * MIB, range(1, 9)) is None
    assert learned(1, 2).bounds(Candidate(checkpointing="full")) is None


def test_one_probe_bounds_the_others_by_what_cannot_grow_and_what_grows_at_most():
    bounds = learned(4).bounds(Candidate(micro_batch=8))
    assert bounds is not None
    assert bounds.low < peak(4) < peak(8) < bounds.high
    assert bounds.high == pytest.approx((100 + 2 * 98) * MIB, rel=0.05)


def test_two_probes_give_the_line_and_more_narrow_its_interval():
    far = Candidate(micro_batch=60)
    two, three = learned(1, 2).bounds(far), learned(1, 2, 30).bounds(far)
    assert two is not None
    assert three is not None
    assert two.mean == pytest.approx(peak(60))
    assert three.mean == pytest.approx(peak(60))
    assert two.high - two.low > 10 * (three.high - three.low)


def test_an_oom_below_the_line_bends_it():
    flat = history((1, ok(1, peak(1))), (2, ok(2, peak(1))), (8, Oom(phase="backward")))
    known = ProbeLines().calibrated(flat, 1000 * MIB)
    bounds = known.bounds(Candidate(micro_batch=8))
    assert bounds is not None
    assert bounds.mean > 900 * MIB
    assert known.phase_above(Candidate(micro_batch=8), 900 * MIB) == "backward"


def test_the_largest_that_surely_fits_is_no_more_than_what_is_expected_and_never_less_than_what_did():
    known = learned(1, 2, 30)
    ends = [known.largest(Candidate(), 700 * MIB, range(1, 101), end) for end in ("high", "mean", "low")]
    assert ends == sorted(ends)
    assert ends[1] == (700 - 150) // 12
    assert ends[0] >= 30


def test_a_prediction_adds_up():
    prediction = learned(1, 2).predict(Candidate(micro_batch=10))
    assert prediction is not None
    assert prediction.peak == pytest.approx(peak(10))
    assert prediction.low < prediction.peak < prediction.high
    parts = prediction.breakdown
    total = parts.parameters + parts.gradients + parts.optimizer_state + parts.activations + parts.other
    assert total == pytest.approx(prediction.allocated)


def test_growth_goes_to_what_should_fit_instead_of_doubling(context):
    """The walk along the graph takes it as it takes the model of traces."""
    grown, budget, tried = [], 10**9, history((1, ok(1, peak(1), budget=10**9)))
    bound = context(target=25_600, budget=budget).informed(ProbeLines(), None)
    for _ in range(12):
        decision = GraphWalk().propose(tried, bound)
        if not isinstance(decision, Try) or decision.candidate.rung() != tried[0].candidate.rung():
            break
        size = decision.candidate.micro_batch
        grown.append(size)
        fits = peak(size) <= bound.usable
        outcome = ok(size, peak(size), budget=budget) if fits else Oom(phase="forward")
        tried = history(*((trial.candidate.micro_batch, trial.outcome) for trial in tried), (size, outcome))
    largest = (bound.usable // MIB - 150) // 12
    assert grown, "nothing was tried"
    assert max(size for size in grown if peak(size) <= bound.usable) >= 0.85 * largest
    assert len(grown) <= 4, grown


def test_a_micro_batch_that_ran_out_does_not_count_as_one_that_fits_where_no_headroom_is_kept():
    outs = [(size, Oom(phase="backward")) for size in (62, 61)]
    budget = 1000 * MIB
    known = ProbeLines().calibrated(history((1, ok(1, 310 * MIB)), (5, ok(5, 352 * MIB)), *outs), budget)
    assert 5 <= known.largest(Candidate(), budget, range(1, 200), "high") < 61
