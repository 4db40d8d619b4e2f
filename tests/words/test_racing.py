"""When a probe has measured long enough to know that it cannot win."""

import random
from types import SimpleNamespace

import pytest

from autotune.racing import WARM_UP, Incumbent, cannot_win, speed_bound, warm_up_bound

BEST = Incumbent(seconds=100.0, deviation=0.02, degrees=4, drift=0.02)
"""A global step of at most 100 seconds, its steps known to vary by 2%."""


def step(micro, last=None, optimizer=0.0):
    """Return the seconds of a step of two micro-steps; of one where no `last` is given."""
    if last is None:
        return SimpleNamespace(micro_step=None, last_micro_step=micro, optimizer_step=optimizer)
    return SimpleNamespace(micro_step=micro, last_micro_step=last, optimizer_step=optimizer)


def bound(*steps, accumulation_steps=10, incumbent=BEST):
    return speed_bound(steps, accumulation_steps, incumbent)


def test_one_step_of_two_micro_steps_is_enough_to_know_that_it_takes_twice_as_long():
    found = bound(step(20.0, 21.0, 1.0))
    assert found.fastest == 201.0
    # Student's t for the incumbent's 4 degrees of freedom, of a deviation of 2%; beside it 2% of drift.
    assert found.share == pytest.approx(2.776 * 0.02)
    assert found.seconds == pytest.approx(201 / (1 + (found.share**2 + 0.02**2) ** 0.5))
    assert (found.steps, found.beaten_by) == (1, 100.0)
    assert cannot_win(found)


def test_what_may_be_as_fast_is_measured_on():
    assert not cannot_win(bound(step(10.4, 10.4)))  # 4% slower, and one step varies by 5.6%
    assert cannot_win(bound(step(10.7, 10.7)))
    assert not cannot_win(bound(step(5.0, 5.0)))


def test_a_single_micro_step_says_nothing():
    assert bound(step(500.0), accumulation_steps=1) is None
    assert not cannot_win(None)
    assert cannot_win(bound(step(500.0), step(500.0), accumulation_steps=1))


def test_one_micro_step_that_something_else_held_up_excludes_nothing():
    assert not cannot_win(bound(step(30.0, 10.0)))
    assert not cannot_win(bound(step(10.0, 30.0)))
    assert not cannot_win(bound(step(30.0, 30.0), step(10.0, 10.0), step(10.0, 10.0)))


def test_own_steps_that_vary_widen_the_bound():
    even, uneven = bound(step(12.0, 12.0), step(12.0, 12.0)), bound(step(12.0, 12.0), step(18.0, 18.0))
    assert even.fastest == uneven.fastest
    assert cannot_win(even)
    assert not cannot_win(uneven)


def test_a_machine_that_drifts_excludes_less():
    drifting = BEST.model_copy(update={"drift": 0.3})
    assert cannot_win(bound(step(12.0, 12.0)))
    assert not cannot_win(bound(step(12.0, 12.0), incumbent=drifting))
    found = bound(step(12.0, 12.0))
    assert found.at_least(0.02) == pytest.approx(found.seconds)
    assert found.at_least(0.3) < 100.0


def test_a_warm_up_excludes_what_is_slower_than_steps_behind_it_may_be():
    state, whole = step(20.0, optimizer=3.0), step(18.0, 19.0, 1.0)
    found = warm_up_bound([state, whole], 10, BEST)
    # The fastest parts of both, as if all behind them were a quarter faster.
    assert found.fastest == pytest.approx((9 * 18 + 19 + 1) / (1 + WARM_UP))
    assert found.share == pytest.approx(2.776 * 0.02)  # the incumbent's: these two are not alike
    assert found.seconds == pytest.approx(found.fastest / (1 + (found.share**2 + 0.02**2) ** 0.5))
    assert (found.steps, found.beaten_by) == (0, 100.0)
    assert cannot_win(found)
    # What a measured step would exclude, a warm-up as slow does not.
    assert cannot_win(bound(step(12.0, 12.0)))
    assert not cannot_win(warm_up_bound([step(12.0), step(12.0, 12.0)], 10, BEST))


def test_a_warm_up_of_single_micro_steps_has_two():
    assert cannot_win(warm_up_bound([step(150.0), step(140.0)], 1, BEST))
    assert not cannot_win(warm_up_bound([step(120.0), step(140.0)], 1, BEST))
    assert warm_up_bound([step(500.0)], 1, BEST) is None


@pytest.mark.parametrize("varies", [0.01, 0.05, 0.15])
def test_what_is_as_fast_as_the_best_is_almost_never_passed_over(varies):
    draw = random.Random(0)

    def some(count):
        return [step(draw.gauss(1, varies), draw.gauss(1, varies)) for _ in range(count)]

    wrong = 0
    for _ in range(2000):
        seen = [9 * one.micro_step + one.last_micro_step for one in some(3)]
        mean = sum(seen) / 3
        spread = (sum((value - mean) ** 2 for value in seen) / 2) ** 0.5
        best = Incumbent(
            seconds=mean + 4.303 * spread / 3**0.5, deviation=spread / mean, degrees=2, drift=0.0
        )
        race = some(3)
        wrong += any(cannot_win(bound(*race[:count], incumbent=best)) for count in (1, 2, 3))
    assert wrong / 2000 < 0.025
