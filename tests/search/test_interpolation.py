"""Which micro-batch is probed between those that growth measured."""

import pytest

from autotune.candidate import Candidate
from autotune.objective import Objective
from autotune.outcome import Oom
from autotune.racing import SpeedBound
from autotune.search.graph_walk import GraphWalk
from autotune.search.interpolation import faster_between
from autotune.search.selection import rank
from autotune.testing.arithmetic import Arithmetic, foreseeing, ok, search
from autotune.trial import Trial

RUNG = Candidate(checkpointing="full", offload="full")


def trial(number, size, outcome):
    return Trial(
        number=number, node="grow", candidate=RUNG.at(size), why="", outcome=outcome, seconds=1.0
    )  # fmt: skip


def took(sizes, overhead=1.0, per_sample=1.0, step=0.0):
    """Return trials of a rung whose micro-steps take so many seconds and so many more for each sample."""
    return tuple(
        trial(number, size, ok(500, overhead + per_sample * size, step))
        for number, size in enumerate(sizes, start=1)
    )


def test_a_smaller_micro_batch_that_leaves_nothing_over_is_expected_to_be_faster(context):
    goal = context(target="1600")  # 16 samples: of 6, three micro-steps take 18
    found = faster_between(took([1, 6], step=2.0), goal)
    assert found.candidate == RUNG.at(4)
    assert found.seconds == pytest.approx(4 * (1 + 4) + 2.0), "3 x 7 + 2 of the largest"
    assert "4 x 4 samples take 22.0 s, 4% less than 3 x 6" in found.why


def test_nothing_is_probed_that_was_or_that_is_hardly_faster(context):
    goal = context(target="1600")
    assert faster_between(took([1, 4, 6]), goal) is None
    assert faster_between(took([1, 6], overhead=2.0), goal) is None, "where fewer micro-steps pay"
    assert faster_between(took([1, 6], overhead=1.9), goal) is None, "by less than the margin"
    assert faster_between(took([6]), goal) is None, "of one nothing is known beside it"
    assert faster_between((), goal) is None
    failed = trial(3, 4, Oom(phase="backward", requested=1, free=0))
    assert faster_between((*took([1, 6]), failed), goal) is None


def test_only_what_lies_between_measured_micro_batches_that_fit_is_told_from_them(context):
    goal = context(target="1600", budget=400)  # nothing that took() fits but what is changed
    small, large = took([1, 6])
    small = small.model_copy(update={"outcome": ok(100, 2.0, 0.0, 400)})
    assert faster_between((small, large), goal) is None, "4 may not fit either"
    slow = SpeedBound(seconds=99.0, fastest=99.0, share=0.1, beaten_by=22.0, steps=1)
    bounded = ok(100, 7.0).model_copy(update={"timing": None, "bound": slow})
    assert faster_between((*took([1, 3]), trial(3, 6, bounded)), context(target="1600")) is None


def test_least_memory_goes_by_something_else(context):
    assert faster_between(took([1, 6]), context(target="1600")) is not None
    least = context(target="1600", objective=Objective(name="memory"))
    assert faster_between(took([1, 6]), least) is None


def test_the_graph_probes_it_last_and_it_wins(context):
    device = Arithmetic(budget=750, overhead=0.01)  # plain bf16 fits up to 6 samples, of 16
    goal = context(target="1600", budget=750, predictor=foreseeing(device))
    history, done = search(device, goal, GraphWalk())
    assert done.reason == "exhausted"
    plain = [one.candidate.micro_batch for one in history if one.candidate.checkpointing == "none"]
    assert (plain[:2], plain[-1], plain.count(4)) == ([1, 6], 4, 1)
    assert history[-1].candidate.micro_batch == 4, "after checkpointing was tried"
    assert history[-1].node == "grow"
    assert rank(history, goal)[0].trial == history[-1]
