"""What benchmarks make of recorded grids: the fastest, what cannot be told from it, and which grids are recorded."""

import dataclasses

import pytest

from autotune.candidate import Candidate
from autotune.devices.recorded_grid import GridPoint, RecordedGrid
from autotune.outcome import Ok
from autotune.search.shipped import load_space
from autotune.testing.arithmetic import Arithmetic, ok
from autotune.testing.grids import CONDITIONS, arithmetic_lines
from autotune.units import MIB
from benchmarks.grid_definitions import DEFINITIONS
from benchmarks.grid_oracle import Oracle, compare, rounds_of, search_context, target_speed
from benchmarks.grid_plan import budget_for, memory_model

DEVICE = Arithmetic(budget=600).in_units(MIB)


@pytest.fixture(scope="module")
def grid():
    lines = arithmetic_lines(DEVICE, load_space("minimal"), target="8 samples")
    return RecordedGrid.of(lines, "arithmetic")


def again(candidate, round, micro, outcome=None):
    return GridPoint(
        candidate=candidate, accumulation_steps=8 // candidate.micro_batch, round=round,
        outcome=outcome or ok(5 * MIB, micro, budget=600 * MIB), seconds=1.0, conditions=CONDITIONS,
    )  # fmt: skip


def test_the_fastest_of_a_grid_leaves_the_headroom_free(grid):
    oracle = Oracle(grid)
    assert oracle.share(oracle.best) == 1.0
    assert oracle.share(None) == 0.0
    assert oracle.share(Candidate(micro_batch=8)) == 0.0, "which runs out of memory"
    assert all(oracle.share(one) <= 1.0 for one in oracle.speeds)
    assert 0 < oracle.oom_share() < 1
    tighter = dataclasses.replace(grid, header=grid.header.model_copy(update={
        "goal": grid.header.goal.model_copy(update={"headroom": 0.5})}))  # fmt: skip
    assert set(Oracle(tighter).speeds) < set(oracle.speeds)


def test_tokens_beyond_the_global_batch_are_no_speed(grid):
    context = search_context(grid.header)  # of 8 samples
    once, three = (Candidate(micro_batch=size) for size in (8, 3))
    same = ok(5 * MIB, 1.0, step=0.0)
    assert target_speed(three, same, context) == pytest.approx(target_speed(once, same, context) / 3)


def test_rounds_replace_a_first_measurement_that_was_lucky(grid):
    lucky, steady = Oracle(grid).fastest(2)
    slow = {lucky: tuple(again(lucky, number, 9.0) for number in (1, 2))}
    repeats = slow | {steady: tuple(again(steady, number, 1.0) for number in (1, 2))}
    oracle = Oracle(dataclasses.replace(grid, repeats=repeats))
    assert oracle.best == steady
    refused = {lucky: (again(lucky, 1, 1.0, Arithmetic(budget=1).outcome(lucky)),)}
    assert lucky not in Oracle(dataclasses.replace(grid, repeats=refused)).speeds
    assert rounds_of(dataclasses.replace(grid, repeats=refused), [lucky]) == {}


def test_what_slows_down_in_the_same_rounds_is_told_apart_all_the_same():
    one, other, third = (Candidate(micro_batch=size) for size in (1, 2, 3))
    found = compare({one: (100, 50, 80, 60), other: (97, 48.5, 77.7, 58.1), third: (101, 49, 79, 61)})
    assert (found.fastest, found.rounds) == (one, 4) or found.fastest == third
    assert set(found.equals) == {one, third}, "3% slower in every round, though rounds differ by half"
    assert set(found.compared) == {one, other, third}


def test_a_budget_for_a_candidate_leaves_the_headroom_and_no_more(grid):
    plain = Oracle(grid).plain()
    for candidate in (plain.at(2), plain.at(3)):
        budget = budget_for(grid.header, grid.traces, candidate)
        peak = memory_model(grid.header, grid.traces).bounds(candidate).mean
        usable = 1 - grid.header.goal.headroom
        assert (budget - MIB) * usable < peak <= budget * usable
        assert budget % MIB == 0
    with pytest.raises(KeyError):
        budget_for(grid.header, {}, plain.at(2))


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda one: one.name)
def test_each_definition_has_trials_enough(definition, grid):
    header = grid.header.model_copy(
        update={
            "goal": definition.goal(), "space": definition.space().model_dump(mode="json"),
            "facts": grid.header.facts.model_copy(update={"blocks": 12}),
        }
    )  # fmt: skip
    context = search_context(header)
    rungs = list(context.rungs())
    useful = len(context.batches(Candidate()).useful)
    assert len(rungs) * useful + context.batches(Candidate()).limit - useful >= 60
    assert definition.model().config
    assert isinstance(grid.points[Candidate()].outcome, Ok)
