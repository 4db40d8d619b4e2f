"""A probe that ends as soon as it cannot win: how many steps it takes, and that ranks end together."""

import itertools
from types import SimpleNamespace

import pytest

from autotune.devices.recorded_grid import read_grid
from autotune.racing import WARM_UP, Incumbent
from autotune.worker.measuring.measure import LEAST_SECONDS, MINIMUM, MINIMUM_ALIKE, hopeless, sample
from autotune.worker.measuring.phases import TRAINING
from autotune.worker.measuring.steps import StepTimes
from autotune.worker.training import Ranks, no_reduction
from benchmarks.record_grid import GRIDS

ALONE = Ranks()
BEST = Incumbent(seconds=10.0, deviation=0.02, degrees=4, drift=0.02)


class Peer(Ranks):
    """Ranks of which another one says the same, or that it cannot win."""

    def __init__(self, beaten: bool) -> None:
        object.__setattr__(self, "beaten", beaten)

    def largest(self, value: float) -> float:
        return max(value, self.beaten)


class Steps:
    """A stepper whose every step takes the same time."""

    def __init__(
        self,
        seconds: float,
        ranks: Ranks = ALONE,
        loader: object = None,
        reduction: object = no_reduction,
        asynchronous: bool = False,
    ) -> None:
        self.phases = SimpleNamespace(meter=SimpleNamespace(asynchronous=asynchronous))
        self.training = SimpleNamespace(ranks=ranks, loader=loader, reduction=reduction)
        self.times = StepTimes(seconds, seconds, 0.0)
        self.taken = 0

    def step(self, micro_steps: int) -> StepTimes:
        self.taken += 1
        return self.times


def asked(to_beat, compile="none"):
    return SimpleNamespace(
        accumulation_steps=10, sample_steps=100, sample_seconds=60.0, to_beat=to_beat, energy=False,
        candidate=SimpleNamespace(compile=compile),
    )  # fmt: skip


def warmed(steps, to_beat=BEST, compile="none"):
    """Return what the steps of a warm-up tell, of one micro-step and of two."""
    whole = steps.step(2)
    alone = StepTimes(None, whole.last_micro_step, 2.0)
    return hopeless(steps, asked(to_beat, compile), 2, (alone, whole))


def sampled(steps, to_beat=BEST):
    samples, bound = sample(steps, asked(to_beat), 2, deadline=float("inf"))
    assert len(samples) == steps.taken
    return steps.taken, bound


def test_what_cannot_win_ends_after_one_whole_step_beyond_the_warm_up():
    taken, bound = sampled(Steps(2.0))
    assert taken == 1
    assert bound.seconds > BEST.seconds
    assert sampled(Steps(2.0), to_beat=None) == (MINIMUM_ALIKE, None)


def test_what_the_warm_up_tells_to_be_hopeless_is_not_measured():
    bound = warmed(Steps(2.0))
    assert bound.steps == 0
    assert 2.0 * 10 / 1.35 < bound.seconds < 2.0 * 10 / 1.25
    assert warmed(Steps(1.2)) is None, "a warm-up may be slower than the steps behind it"
    assert warmed(Steps(2.0), to_beat=None) is None


def test_a_warm_up_that_is_unlike_what_follows_tells_nothing():
    assert warmed(Steps(2.0), compile="regional") is None
    assert warmed(Steps(2.0, loader=object())) is None, "the heaviest batches of a dataset"
    assert warmed(Steps(2.0, asynchronous=True)) is None
    fast = BEST.model_copy(update={"seconds": 0.1})
    assert warmed(Steps(LEAST_SECONDS / 2), fast) is not None
    assert warmed(Steps(LEAST_SECONDS / 2.1), fast) is None


def test_a_warm_up_ends_on_all_ranks_where_one_of_them_is_hopeless():
    bound = warmed(Steps(0.5, ranks=Peer(beaten=True)))
    assert bound.seconds < BEST.seconds
    assert warmed(Steps(2.0, ranks=Peer(beaten=False))) is not None


def test_the_warm_ups_of_recorded_grids_are_seldom_slower_than_allowed():
    ratios = []
    for path in sorted(GRIDS.glob("*.jsonl")):
        grid = read_grid(path)
        for outcome in (one for candidate in grid.points for one in grid.samples(candidate)):
            warm = sum(phase.seconds for phase in outcome.phases if phase.phase in TRAINING)
            ratios.append(warm / min(outcome.step_seconds))
    assert len(ratios) > 600
    assert sum(ratio <= 1 + WARM_UP for ratio in ratios) >= 0.99 * len(ratios)


def test_what_may_win_is_measured_as_without_a_race():
    assert sampled(Steps(1.0)) == sampled(Steps(0.5)) == (MINIMUM_ALIKE, None)


def test_short_steps_are_measured_until_they_are_half_a_second_together():
    steady = Steps(0.01)  # of two micro-steps each, so that a step takes 0.02 s
    taken, bound = sampled(steady, to_beat=None)
    assert taken * 2 * 0.01 == pytest.approx(LEAST_SECONDS, abs=0.03)
    assert bound is None
    varying = Steps(0.01)
    times = itertools.cycle([StepTimes(0.005, 0.005, 0.0), StepTimes(0.015, 0.015, 0.0)])
    varying.step = lambda micro_steps: next(times)
    # One step of them would be told to be slower than this.
    hopeless = Incumbent(seconds=0.001, deviation=0.02, degrees=4, drift=0.02)
    samples, bound = sample(varying, asked(hopeless), 2, deadline=float("inf"))
    assert bound.steps == len(samples) == pytest.approx(taken, abs=1)


def test_few_steps_and_little_time_are_not_exceeded_for_it():
    short = Steps(0.01)
    samples, _ = sample(short, asked(None), 2, deadline=0.0)
    assert len(samples) == MINIMUM_ALIKE


def test_an_optimizer_whose_two_times_differ_much_is_timed_once_more():
    varying = Steps(1.0)
    times = iter([0.1, 3.0, 0.1, 3.0, 0.1])
    varying.step = lambda micro_steps: StepTimes(1.0, 1.0, next(times))
    samples, _ = sample(varying, asked(None), 2, deadline=0.0)
    assert len(samples) == MINIMUM


def test_where_only_the_last_micro_step_reduces_gradients_it_takes_a_step_more():
    assert sampled(Steps(1.0, reduction=lambda last: no_reduction(last))) == (MINIMUM, None)


def test_where_batches_differ_it_takes_as_many_steps_as_any_measurement_and_then_is_one():
    assert sampled(Steps(2.0, loader=object())) == (MINIMUM, None)


def test_ranks_end_together_as_the_slowest_of_them_must():
    taken, bound = sampled(Steps(0.5, ranks=Peer(beaten=True)))
    assert taken == 1
    assert bound.seconds == pytest.approx(0.5 * 10, rel=0.1)
