"""Predictions of candidates from a timeline made by hand, before and after probes."""

from dataclasses import replace

import pytest

from autotune.candidate import Candidate
from autotune.memory.device_overhead import (
    CUDA_CONTEXT,
    CUDA_KERNELS,
    GLOO_GROUP,
    NCCL_BUFFERS,
    DeviceOverhead,
)
from autotune.memory.predictor import Predictor
from autotune.memory.reserved import allocator_usage
from autotune.outcome import Breakdown, Memory, Ok, Oom, Sample, StepTiming
from autotune.timeline.curve import curve
from autotune.timeline.step_events import CATEGORIES, Accumulated, Slots, StepEvents, into_existing
from autotune.timeline.timeline import Timeline
from autotune.trial import Trial
from autotune.units import MIB

PARAMETER, GRADIENT, STATE, ACTIVATION = (
    CATEGORIES.index(n) for n in ("parameter", "gradient", "optimizer_state", "activation")
)
RUNG = Candidate(precision="fp32")
GROUND = DeviceOverhead.measured("cpu", 300 * MIB)


def timeline(device="cpu"):
    """100 MiB of parameters; activations of 40 MiB a sample; gradients while those go; two moments."""
    return Timeline(
        device=device,
        slots=Slots(
            base=[100 * MIB, 0, 100 * MIB, 200 * MIB],
            slope=[0, 40 * MIB, 0, 0],
            category=[PARAMETER, ACTIVATION, GRADIENT, STATE],
            place=[0] * 4,
            module=[0] * 4,
        ),
        modules=["model"],
        build=StepEvents([0], [(0, "build")]),
        micro=StepEvents([1, 2, ~1], [(0, "forward"), (1, "backward")], [Accumulated(2, 0, 2, False)]),
        single=StepEvents([1, 2, ~1], [(0, "forward"), (1, "backward")], [Accumulated(2, 0, 2, False)]),
        first_update=StepEvents([3, ~2], [(0, "optimizer")]),
        update=StepEvents([~2], [(0, "optimizer")]),
    )


def trial(micro_batch, outcome, rung=RUNG):
    return Trial(number=1, candidate=rung.at(micro_batch), node="n", why="", outcome=outcome, seconds=1)


def ok(peak):
    sample = Sample(mean=1, half_width=0, count=3)
    nothing = Breakdown(parameters=0, gradients=0, optimizer_state=0, activations=0, other=0)
    return Ok(
        memory=Memory(allocated=0, reserved=0, device_peak=peak, budget=1 << 40, baseline=0, breakdown=nothing),
        timing=StepTiming(micro_step=sample, last_micro_step=sample, optimizer_step=sample), phases=(), losses=(),
        accumulation_steps=1,
    )  # fmt: skip


def test_an_engine_has_a_timeline_of_its_own_for_several_micro_steps():
    """The two together keep a buffer of 10 MiB and make 30 MiB of gradients that are not added up."""
    one = timeline()
    base = [*one.slots.base, 10 * MIB, 30 * MIB]
    two = replace(
        one, micro_steps=2,
        slots=Slots(base, [*one.slots.slope, 0, 0], [0] * 6, [0] * 6, [0] * 6),
        build=StepEvents([0, 4], [(0, "build")]),
        micro=StepEvents([1, 5, ~1, 1, 2, ~1], [(0, "forward"), (1, "backward"), (3, "forward"), (4, "backward")]),
        update=StepEvents([~2, ~5], [(0, "optimizer")]), first_update=StepEvents([3, ~2, ~5], [(0, "optimizer")]),
    )  # fmt: skip
    both = replace(one, several=two)
    assert Timeline.parse(both.dump()) == both
    assert both.allocated(3) == both.peak(3).bytes == one.allocated(3)
    assert both.allocated(3, accumulating=True) == one.allocated(3) + 40 * MIB
    assert (
        both.peak(3, accumulating=True).bytes
        == allocator_usage(both, 3, True).allocated_peak
        == one.allocated(3) + 40 * MIB
    )
    assert max(level for _, _, level in both.curve(3, True)) == max(curve(both, 3, True).totals())
    assert not replace(both, several=replace(two, exact=4)).covers(3)


def test_the_peak_of_a_composed_probe():
    one = timeline()
    assert one.allocated(3) == (100 + 200 + 120 + 100) * MIB  # second step: state, activations and gradients
    peak = one.peak(3)
    assert (peak.phase, peak.step) == ("backward", 2)
    assert peak.breakdown["gradient"] == 100 * MIB
    # A second micro-step holds the gradients of the first, and its own until they are added.
    assert one.allocated(3, accumulating=True) == (100 + 200 + 100 + 120 + 100) * MIB


def test_the_peak_counts_the_workspaces_of_cublas_where_they_are_taken():
    one = timeline()
    for size in (0, MIB, 64 * MIB):
        peak = one.peak(3, blas_workspace=size)
        assert peak.bytes == allocator_usage(one, 3, blas_workspace=size).allocated_peak
        assert sum(peak.breakdown.values()) == peak.bytes
        assert sum(holder.bytes for holder in peak.holders if holder.module == "cuBLAS") == 2 * size


def test_a_build_is_the_peak_only_where_it_tops_a_step_with_its_workspaces():
    """Frozen weights that are cast as they are made: whole and cast for a moment, more than a small step takes."""
    one = timeline()
    one.slots.base.append(500 * MIB)
    for part in (one.slots.slope, one.slots.category, one.slots.place, one.slots.module):
        part.append(0)
    one.slots.category[4] = CATEGORIES.index("temporary")
    one.build.events.extend([4, ~4])
    one.modules[:] = [""]
    built, stepped = one.peak(3), one.peak(3, blas_workspace=64 * MIB)
    assert (built.phase, built.holders[0].module) == ("build", "building of the model")
    assert stepped.phase == "backward"
    assert {"cuBLAS", "optimizer"} <= {holder.module for holder in stepped.holders}


def test_what_the_first_micro_step_leaves_for_good_is_counted_once():
    one, other = timeline(), timeline()
    one.slots.base.append(7 * MIB)
    for part in (one.slots.slope, one.slots.category, one.slots.place, one.slots.module):
        part.append(0)
    plain = other.allocated(3), other.allocated(3, accumulating=True)
    for micro in (one.micro, one.single):
        micro.events.insert(0, 4)  # a batch that is made once
        micro.marks[1] = (2, "backward")
        micro.accumulated[0] = Accumulated(3, 0, 2, False)
    assert (one.allocated(3), one.allocated(3, accumulating=True)) == tuple(size + 7 * MIB for size in plain)
    assert one.peak(3).phase == "backward"


def test_a_gradient_that_autograd_copied_is_not_copied_again():
    micro = StepEvents([5, 6, 7, ~6, ~5], [(0, "forward"), (1, "backward")], [Accumulated(3, 0, 7, True)])
    assert into_existing(micro).events == [5, 6, ~6, ~5]
    stolen = StepEvents([5, 6, ~5], [(0, "forward"), (1, "backward")], [Accumulated(2, 0, 6, False)])
    assert into_existing(stolen).events == [5, 6, ~6, ~5]
    assert into_existing(stolen).marks == stolen.marks


def test_a_prediction_is_baseline_and_tensors_until_a_probe_says_otherwise():
    predictor = Predictor({RUNG.rung().key(): timeline()}, GROUND)
    first = predictor.predict(RUNG.at(3))
    assert first.peak == GROUND.baseline + 520 * MIB
    assert first.low < first.peak < first.high
    assert first.breakdown.activations == 120 * MIB
    learned = predictor.calibrated((trial(2, ok(GROUND.baseline + (480 + 50) * MIB)),), 1 << 40)
    assert predictor.predict(RUNG.at(3)) == first  # what it was called on knows nothing of it
    after = learned.predict(RUNG.at(3))
    assert after.peak == pytest.approx(GROUND.baseline + (520 + 50) * MIB, rel=0.02)
    assert after.high - after.low < first.high - first.low


def test_a_rung_that_was_not_traced_is_not_predicted():
    predictor = Predictor({RUNG.rung().key(): timeline()}, GROUND)
    assert predictor.predict(RUNG.model_copy(update={"precision": "bf16"})) is None
    assert predictor.largest(RUNG.model_copy(update={"precision": "bf16"}), 1 << 40, range(1, 10)) is None


def test_the_verdict_is_sure_only_where_the_whole_interval_is_on_one_side():
    prediction = Predictor({RUNG.rung().key(): timeline()}, GROUND).predict(RUNG.at(3))
    assert prediction.verdict(prediction.high) == "fits"
    assert prediction.verdict(prediction.low - 1) == "over"
    assert prediction.verdict(prediction.peak) == "unsure"


@pytest.mark.parametrize("largest", [1, 2, 7, 8, 31])
def test_the_largest_micro_batch_is_the_last_that_fits(largest):
    predictor = Predictor({RUNG.rung().key(): timeline()}, GROUND)
    usable = predictor.predict(RUNG.at(largest)).peak
    assert predictor.largest(RUNG, usable, range(1, 100)) == largest
    assert predictor.largest(RUNG, usable, range(1, max(largest, 2))) == max(1, largest - 1)
    assert predictor.largest(RUNG, 10 * MIB, range(1, 100)) == 0


def test_a_rungs_programs_are_composed_once_for_all_micro_batches_that_are_tried(monkeypatch):
    whole, composed, program = timeline(), [], Timeline.program
    monkeypatch.setattr(Timeline, "program", lambda *asked: composed.append(asked) or program(*asked))
    usable = Predictor({RUNG.rung().key(): whole}, GROUND).predict(RUNG.at(62)).peak
    composed.clear()
    predictor = Predictor({RUNG.rung().key(): whole}, GROUND)
    assert predictor.largest(RUNG, usable, range(1, 101)) == 62
    assert len(composed) == 1, "of several samples: where two fit, one does"
    learned = predictor.calibrated((trial(4, ok(predictor.predict(RUNG.at(4)).peak)),), 1 << 40)
    composed.clear()
    assert learned.largest(RUNG, usable, range(1, 101)) == 62
    assert not composed, "what was priced does not follow from what is learned"


def test_an_oom_below_the_budget_lifts_the_prediction():
    predictor = Predictor({RUNG.rung().key(): timeline()}, GROUND)
    usable = 1000 * MIB
    before = predictor.largest(RUNG, usable, range(1, 100))
    predictor = predictor.calibrated((trial(before, Oom(phase="backward")),), usable)
    assert predictor.predict(RUNG.at(before)).peak > usable * 0.99
    assert predictor.largest(RUNG, usable, range(1, 100)) < before + 1


def test_fixed_and_expandable_segments_share_a_trace_and_differ_in_what_they_reserve():
    predictor = Predictor({RUNG.rung().key(): timeline("cuda")}, DeviceOverhead.measured("cuda", 0, 32 * MIB))
    expandable = predictor.predict(RUNG.at(2))
    fixed = predictor.predict(RUNG.at(2).model_copy(update={"expandable_segments": False}))
    assert expandable.allocated == fixed.allocated == (480 + 64) * MIB
    assert expandable.reserved % (20 * MIB) == 0
    assert expandable.peak >= expandable.reserved + 400 * MIB


def test_bounds_order_what_surely_fits_and_what_surely_does_not():
    predictor = Predictor({RUNG.rung().key(): timeline()}, GROUND)
    sizes = [predictor.largest(RUNG, 4000 * MIB, range(1, 1000), bound) for bound in ("high", "mean", "low")]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2]
    assert predictor.predict(RUNG.at(sizes[0])).verdict(4000 * MIB) == "fits"
    assert predictor.predict(RUNG.at(sizes[2] + 1)).verdict(4000 * MIB) == "over"


def test_the_phase_in_which_memory_runs_out():
    predictor = Predictor({RUNG.rung().key(): timeline()}, GROUND)

    def phase(tensors):
        return predictor.phase_above(RUNG.at(3), GROUND.baseline + tensors * MIB)

    assert [phase(90), phase(200), phase(300), phase(350)] == ["build", "forward", "backward", "optimizer"]


def test_a_timeline_of_one_micro_batch_prices_that_one_alone():
    one = replace(timeline(), exact=3, single=None)
    predictor = Predictor({}, GROUND).with_timeline(RUNG.at(3), one)
    assert predictor.predict(RUNG.at(3)).allocated == 520 * MIB
    assert predictor.predict(RUNG.at(4)) is None
    assert predictor.largest(RUNG, 1 << 40, range(1, 10)) is None
    both = predictor.with_timeline(RUNG.at(4), replace(one, exact=4))
    assert both.covers(RUNG.at(3))
    assert both.covers(RUNG.at(4))
    assert not both.covers(RUNG)


def test_several_ranks_add_the_buffers_of_nccl_and_the_threads_of_gloo():
    one, several = (DeviceOverhead.measured("cuda", 500 * MIB, 0, ranks) for ranks in (1, 8))
    assert several.baseline - one.baseline == NCCL_BUFFERS
    assert several.spread > one.spread
    unknown = DeviceOverhead.measured("cuda", 0)
    assert one.baseline == 500 * MIB + CUDA_KERNELS, "which no worker sees before it trains"
    assert unknown.baseline == CUDA_CONTEXT + CUDA_KERNELS
    assert unknown.spread > one.spread
    alone, together = (DeviceOverhead.measured("cpu", 500 * MIB, 0, ranks) for ranks in (1, 8))
    assert together.baseline - alone.baseline == GLOO_GROUP
    for own, group in ((several, NCCL_BUFFERS), (together, 2 * GLOO_GROUP)):
        assert own.held(Candidate(sharding="fsdp2")) == own.baseline
        assert own.held(Candidate(sharding="hsdp")) == own.baseline + group
    assert together.held(Candidate(sharding="zero2", engine="deepspeed")) == together.baseline + GLOO_GROUP
