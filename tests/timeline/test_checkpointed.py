"""Any number of checkpointed blocks from the trace of one: against timelines that were written for each number."""

import pytest

from autotune.candidate import Candidate
from autotune.memory.device_overhead import DeviceOverhead
from autotune.memory.fewest_checkpointed import Untraced, fewest_checkpointed
from autotune.memory.predictor import Predictor
from autotune.timeline.checkpointed import numbers_covered, with_checkpointed
from autotune.timeline.depth import NotAlike
from autotune.timeline.timeline import Timeline
from tests.timeline.blocks import model, without_blocks

BLOCKS = 12
GROUND = DeviceOverhead("cpu", 0, 0)
FULL = Candidate(checkpointing="full")


def levels(timeline, micro_batch, accumulating):
    """Return what is alive whenever something is allocated, and how much is computed."""
    program = timeline.program(micro_batch, accumulating)
    alive = program.levels(timeline.sizes_in("device", micro_batch))
    return [level for level, event in zip(alive, program.events, strict=True) if event >= 0]


@pytest.mark.parametrize("count", range(2, BLOCKS - 1))
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("traced", [4, 5, 8])
def test_every_number_is_what_a_trace_of_it_is(traced, frozen, count):
    composed = with_checkpointed(model(BLOCKS, traced, frozen=frozen), count)
    whole = model(BLOCKS, count, frozen=frozen)
    for micro_batch in (1, 2, 9):
        for accumulating in (False, True):
            assert levels(composed, micro_batch, accumulating) == levels(whole, micro_batch, accumulating)
        ours, theirs = composed.peak(micro_batch), whole.peak(micro_batch)
        assert (ours.bytes, ours.phase, ours.breakdown) == (theirs.bytes, theirs.phase, theirs.breakdown)
        assert sorted(ours.holders) == sorted(theirs.holders)
        for phase in ("forward", "backward", "optimizer"):
            assert sorted(composed.work.of(phase, micro_batch)) == sorted(whole.work.of(phase, micro_batch))
    assert composed.blocks.checkpointed == count
    assert (composed.blocks.micro, composed.blocks.single) == (whole.blocks.micro, whole.blocks.single)
    assert Timeline.parse(composed.dump()) == composed


def test_a_number_made_of_another_made_one_is_still_the_same():
    twice = with_checkpointed(with_checkpointed(model(BLOCKS, 4), 8), 3)
    assert levels(twice, 3, True) == levels(model(BLOCKS, 3), 3, True)


def test_blocks_that_differ_are_not_taken_for_each_other():
    for odd in (2, 6):
        with pytest.raises(NotAlike):
            with_checkpointed(model(BLOCKS, 5, odd=odd), 7)


@pytest.mark.parametrize(("blocks", "traced"), [(12, 3), (12, 9), (7, 3), (7, 4)])
def test_too_few_of_a_sort_tell_nothing_of_others(blocks, traced):
    assert not numbers_covered(model(blocks, traced))
    assert not numbers_covered(without_blocks(model(12, 5)))


def some(count):
    return FULL.model_copy(update={"checkpointed_blocks": count})


def test_a_predictor_prices_every_number_once_one_was_traced():
    predictor = Predictor({}, GROUND).with_timeline(some(5), model(BLOCKS, 5))
    for count in range(2, BLOCKS - 1):
        candidate = some(count).at(4)
        assert predictor.covers(candidate)
        assert predictor.predict(candidate).allocated == model(BLOCKS, count).allocated(4)
    assert not predictor.covers(some(1).at(4))
    assert not predictor.covers(some(BLOCKS - 1).at(4))
    assert not predictor.covers(FULL.at(4))
    assert not predictor.covers(some(4).model_copy(update={"checkpointing": "selective"}).at(4))
    assert not Predictor({}, GROUND).with_timeline(some(5), model(BLOCKS, 5, odd=7)).covers(some(6).at(4))


def answered(predictor, micro_batch, usable, **asked):
    """Ask, and trace what the answer needs; return the answer with the numbers that were traced."""
    traced = []
    while isinstance(
        answer := fewest_checkpointed(predictor, FULL.at(micro_batch), usable, BLOCKS, **asked), Untraced
    ):
        candidate = answer.candidate
        count = {"none": 0}.get(candidate.checkpointing, candidate.checkpointed_blocks)
        traced.append(count)
        timeline = model(BLOCKS, BLOCKS if count == "all" else count)
        predictor = predictor.with_timeline(candidate.rung(), timeline)
    return answer, traced


@pytest.mark.parametrize("wanted", range(BLOCKS + 1))
def test_no_block_more_is_checkpointed_than_the_memory_asks_for(wanted):
    usable = model(BLOCKS, wanted).allocated(64)
    fewest = next(count for count in range(BLOCKS + 1) if model(BLOCKS, count).allocated(64) <= usable)
    answer, traced = answered(Predictor({}, GROUND), 64, usable, bound="mean")
    assert answer == (
        Candidate(micro_batch=64) if fewest == 0 else some("all" if fewest == BLOCKS else fewest).at(64)
    )
    assert traced[:3] == ["all", 0, BLOCKS // 2][: len(traced)]
    assert len(traced) <= 4, "the first or the last number may have to be traced for itself"


def test_where_not_even_all_blocks_help_there_is_no_answer():
    usable = model(BLOCKS, BLOCKS).allocated(64) - 1
    assert answered(Predictor({}, GROUND), 64, usable, bound="mean") == (None, ["all"])


def test_the_high_end_of_the_interval_has_to_fit():
    usable = model(BLOCKS, 6).allocated(64)
    (mean, _), (high, _) = (
        answered(Predictor({}, GROUND), 64, usable, bound=bound) for bound in ("mean", "high")
    )
    assert mean == some(6).at(64)
    assert high is None, "an uncalibrated interval is wider than this model"


def test_without_further_traces_a_known_number_is_the_answer():
    predictor = Predictor({}, GROUND)
    for candidate, timeline in (
        (FULL, model(BLOCKS, BLOCKS)),
        (Candidate(), model(BLOCKS, 0)),
        (some(5), model(BLOCKS, 5)),
    ):
        predictor = predictor.with_timeline(candidate, timeline)
    one = model(BLOCKS, 1).allocated(64)
    asked = {"usable": one, "blocks": BLOCKS, "bound": "mean"}
    assert fewest_checkpointed(predictor, FULL.at(64), **asked) == Untraced(some(1).at(64))
    assert fewest_checkpointed(predictor, FULL.at(64), **asked, known_only=True) == some(2).at(64)
