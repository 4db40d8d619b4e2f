"""What a probe has to beat, and what a search makes of one that did not."""

import math

import pytest

from autotune.candidate import Candidate
from autotune.objective import Objective
from autotune.outcome import Oom
from autotune.prediction import Priced
from autotune.racing import SpeedBound
from autotune.search.drift import drift_of
from autotune.search.graph_walk import edge_of
from autotune.search.incumbent import bound_of, incumbent
from autotune.search.pareto import measured_points, pareto_front, predicted_points
from autotune.search.selection import rank
from autotune.search.wording import rejected
from autotune.testing.arithmetic import ok
from autotune.timing.speed_model import AtLeast, Observed, SpeedModel
from tests.search.test_selection import measured, trial


def bounded(number, seconds, peak=500, micro_batch=4, **fields):
    """Return a trial that ended when it was sure to take at least so many seconds for a global step."""
    slow = SpeedBound(seconds=seconds, fastest=1.1 * seconds, share=0.08, beaten_by=seconds / 2, steps=1)
    outcome = ok(peak).model_copy(
        update={"timing": None, "bound": slow, "step_seconds": (9.0, 9.0, 1.0, 1.0)}
    )
    return trial(number, outcome, micro_batch, **fields)


def test_what_is_to_be_beaten_is_the_best_as_far_as_it_is_sure(context):
    sure = trial(1, ok(500, micro=0.5, step=0.0))
    unsure = measured(2, 7.5, 4.0)  # faster as it stands, and nobody knows
    here = context()
    found = incumbent((sure, unsure), here)
    width = 16 * 0.005 / 8
    assert found.seconds == pytest.approx(8 * (1 + math.hypot(width, found.drift)))
    assert found.degrees == 4
    assert found.deviation == pytest.approx(width * math.sqrt(5) / 2.776)
    assert found.drift == drift_of((sure, unsure), (), here).share


def test_nothing_is_to_be_beaten_where_nothing_fits_or_another_objective_needs_the_speed(context):
    fits, oom = trial(1, ok(500)), trial(2, Oom(phase="forward"))
    assert incumbent((), context()) is None
    assert incumbent((oom, bounded(3, 9.0)), context()) is None
    assert incumbent((trial(1, ok(990)),), context(headroom=0.05)) is None
    for name, raced in {"speed": True, "cost": True, "memory": False, "energy": False}.items():
        goal = context().goal.model_copy(update={"objective": Objective.model_construct(name=name)})
        of = context().__class__(**{**vars(context()), "goal": goal})
        assert (incumbent((fits,), of) is not None) == raced


def test_a_bound_is_never_taken_as_a_speed(context):
    here = context()
    best, slow = trial(1, ok(900, micro=0.5)), bounded(2, 30.0, peak=300, checkpointing="full")
    history = (best, slow)
    assert [entry.trial.number for entry in rank(history, here)] == [1]
    assert rank((slow,), here) == []
    assert incumbent(history, here) == incumbent((best,), here)
    assert drift_of(history, (), here) == drift_of((best,), (), here)
    assert (slow.time_error(), slow.error()) == (None, None)
    # Its memory is known, and that it fits.
    assert edge_of(slow, here) == "ok"
    points = measured_points(history, here)
    assert [(point.peak, point.tokens_per_second is None) for point in points] == [(900, False), (300, True)]
    assert points[1].at_most == pytest.approx(6400 / bound_of(slow, here).seconds)
    assert [point.number for point in pareto_front(points)] == [1]
    # What is predicted of its speed stands beside it, marked as that.
    priced = Priced(candidate=slow.candidate, peak=310, low=300, high=320, seconds=40.0, half_width=4.0)
    assert [point.evidence for point in predicted_points([priced], here, history)] == ["predicted"]


def test_the_report_says_by_how_much_it_is_slower_at_least(context):
    best, slow = measured(1, 10.0, 0.01), bounded(2, 15.0, checkpointing="full")
    assert rejected((best, slow), context(), best) == [
        ("bf16 + checkpointing", "micro-batch 4: at least 50.0% slower, so it was not measured to the end")
    ]


def test_a_bound_teaches_the_speed_model_what_it_excludes_and_nothing_else():
    plain, compiled = Candidate(micro_batch=8), Candidate(micro_batch=8, compile="regional")
    seen = [Observed(plain, 10.0, 10.0, 0.01)]
    before = SpeedModel(seen).expect([compiled], [7.0])[0]
    assert before.seconds == pytest.approx(7.0, rel=0.05)
    after = SpeedModel(seen, [AtLeast(compiled, 7.0, 12.0)])
    told = after.expect([compiled], [7.0])[0]
    assert told.seconds > 12.0
    # Also at another micro-batch, which shares the technique.
    assert after.expect([compiled.at(16)], [6.5])[0].seconds > 10.0
    # What was expected to take longer anyway is no news.
    idle = SpeedModel(seen, [AtLeast(compiled, 7.0, 2.0)]).expect([compiled], [7.0])[0]
    assert idle.seconds == pytest.approx(before.seconds, rel=1e-3)
    assert SpeedModel([], [AtLeast(compiled, 7.0, 12.0)]).expect([compiled], [7.0])[0].seconds > 12.0
