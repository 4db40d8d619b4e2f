"""What nothing beats in both memory and speed, and what is known one step away from a winner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.candidate import Candidate
from autotune.outcome import Oom, Unsupported
from autotune.prediction import Priced
from autotune.reporting.tradeoffs import Tradeoffs, speed_change
from autotune.search.pareto import Point, measured_points, pareto_front, predicted_points
from autotune.search.sensitivity import neighbours, sensitivity
from autotune.testing.arithmetic import ok
from autotune.testing.grids import FACTS
from tests.search.test_selection import NONE, trial


def point(peak, speed, evidence="measured", fits=True, number=None, **fields):
    seconds = None if speed is None else 1000 / speed
    return Point(Candidate(**fields), evidence, peak, peak, peak, speed, 0.0, seconds, fits, number)


def test_the_front_holds_what_no_fitting_one_beats_in_both():
    small, large = point(10, 100.0, number=1), point(30, 300.0, "predicted")
    beaten, tight, unknown = (
        point(20, 90.0, number=2),
        point(5, 900.0, fits=False),
        point(1, None, "predicted"),
    )
    middle = point(20, 200.0, number=3)
    assert pareto_front([large, beaten, tight, unknown, middle, small]) == [small, middle, large]
    assert pareto_front([]) == []


def test_of_equals_the_probed_one_stands_for_all():
    predicted, probed = point(10, 100.0, "predicted"), point(10, 100.0, number=4)
    assert pareto_front([predicted, probed]) == [probed]


def priced(candidate, peak, seconds=None):
    width = None if seconds is None else seconds / 10
    return Priced(
        candidate=candidate, peak=peak, low=peak - 5, high=peak + 5, seconds=seconds, half_width=width
    )


def test_what_was_measured_is_never_shown_as_predicted(context):
    history = (trial(1, ok(500)), trial(2, Oom(phase="backward"), micro_batch=8))
    asked = context(headroom=0.2)
    (measured,) = measured_points(history, asked, NONE)
    assert (measured.evidence, measured.peak, measured.low, measured.number) == ("measured", 500, 500, 1)
    assert measured.tokens_per_second == pytest.approx(6400 / (16 * 0.1 + 0.01))
    one, other = Candidate(micro_batch=2), Candidate(micro_batch=16)
    found = predicted_points(
        [priced(Candidate(micro_batch=4), 1), priced(Candidate(micro_batch=8), 2), priced(one, 300, 5.0),
         priced(other, 900)], asked, history,
    )  # fmt: skip
    assert [entry.candidate for entry in found] == [one, other]
    assert (found[0].evidence, found[0].low, found[0].high, found[0].fits) == ("predicted", 295, 305, True)
    assert (found[0].tokens_per_second, found[0].interval) == (1280.0, pytest.approx(128.0))
    assert (found[1].tokens_per_second, found[1].fits) == (None, False)
    replayed = measured_points(history, asked, NONE, "replayed")
    assert [entry.evidence for entry in replayed] == ["replayed"]


def test_neighbours_are_one_step_away_in_the_spaces_own_order(context):
    """The default space: bf16, fp16, fp32; no checkpointing or full; no offload, of the optimizer, or full."""
    steps = [(step.axis, step.value) for step in neighbours(Candidate(micro_batch=4), context())]
    assert steps == [
        ("micro_batch", 3), ("micro_batch", 5), ("precision", "fp16"), ("checkpointing", "full"),
        ("offload", "optimizer"),
    ]  # fmt: skip
    middle = Candidate(micro_batch=64, offload="optimizer", precision="fp16")
    steps = [(step.axis, step.value) for step in neighbours(middle, context())]
    assert steps == [
        ("micro_batch", 32), ("precision", "bf16"), ("precision", "fp32"), ("checkpointing", "full"),
        ("offload", "none"), ("offload", "full"),
    ]  # fmt: skip


def test_one_block_more_or_fewer_is_one_step_where_any_number_may_be_checkpointed(context):
    known = context()
    space = known.space.model_copy(update={"axes": known.space.axes | {"checkpointed_blocks": ("any",)}})
    known = replace(known, space=space, model=FACTS.model_copy(update={"blocks": 8}))
    steps = {
        count: [
            step.value
            for step in neighbours(Candidate(checkpointing="full", checkpointed_blocks=count), known)
            if step.axis == "checkpointed_blocks"
        ]
        for count in (1, 4, 7, "all")
    }
    assert steps == {1: [2], 4: [3, 5], 7: [6, "all"], "all": [7]}


def test_each_neighbour_is_measured_predicted_refused_or_said_not_to_be_known(context):
    asked, winner = context(), Candidate(micro_batch=4, offload="optimizer")
    history = (
        trial(1, ok(500), offload="optimizer"),
        trial(2, Oom(phase="backward", requested=9, free=5), micro_batch=5, offload="optimizer"),
        trial(3, ok(700)),
        trial(4, Unsupported(reason="no fp16 here"), precision="fp16", offload="optimizer"),
    )
    points = [
        *measured_points(history, asked, NONE),
        *predicted_points([priced(Candidate(micro_batch=3, offload="optimizer"), 400)], asked, history),
    ]
    checkpointed = winner.model_copy(update={"checkpointing": "full"}).rung()
    changes = {
        (change.axis, change.after): change
        for change in sensitivity(winner, asked, history, points, {checkpointed: "its code reads values"})
    }
    larger = changes["micro_batch", 5]
    assert (larger.known, larger.point, larger.before) == ("measured", None, 4)
    assert larger.why == "OOM in backward: 9 B were asked for with 5 B free"
    smaller = changes["micro_batch", 3]
    assert (smaller.known, smaller.point.peak) == ("predicted", 400)
    assert smaller.why == "its speed is not predicted on this device"
    none = changes["offload", "none"]
    assert (none.known, none.point.number, none.why) == ("measured", 3, "")
    refused = changes["offload", "full"]
    assert (refused.known, refused.point) == ("refused", None)
    assert "recomputed" in refused.why
    assert changes["precision", "fp16"].why == "not supported: no fp16 here"
    assert changes["checkpointing", "full"].known == "unknown"
    assert changes["checkpointing", "full"].why == "its code reads values"
    bare = sensitivity(winner, asked, history, points)
    assert next(c for c in bare if c.axis == "checkpointing").why == "neither probed nor priced"


def test_tokens_beyond_the_target_make_nothing_faster(context):
    here = context(target="5 samples")
    whole, rounded = (
        trial(1, ok(600, micro=1.0, step=0.0), micro_batch=5),
        trial(2, ok(500, micro=0.55, step=0.0), 3),
    )
    points = measured_points((whole, rounded), here)
    assert points[1].tokens_per_second > points[0].tokens_per_second  # of 6 samples, in more time than 5 take
    assert [one.number for one in pareto_front(points)] == [2, 1]
    smaller = next(
        one for one in sensitivity(whole.candidate, here, (whole, rounded), points) if one.after == 3
    )
    found = Tradeoffs(tuple(points), tuple(pareto_front(points)), (smaller,), winner=points[0])
    assert "(-9.1%)" in speed_change(smaller, found)
