import math
import random

import pytest

from autotune.candidate import Candidate
from autotune.exit_codes import ExitCode
from autotune.results.comparison import compare_night, compare_two
from autotune.results.find import open_store
from autotune.results.moderated import quantile
from autotune.results.regression import falls, grown, spreads
from autotune.results.row import RunRows
from autotune.results.thresholds import Thresholds
from autotune.testing.arithmetic import ok
from autotune.units import GIB, MIB
from tests.results.stores import HERE, OOM, cell, trial

NIGHTS = [f"202611{day:02}T000000Z" for day in range(1, 31)]
WINNER = Candidate(micro_batch=2)


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "results") as store:
        yield store


def night(place, name="gpt2-small", speed=100.0, peak=300 * MIB, oom=(), **fields):
    """Return a night of a cell: its winner and a larger candidate, each with a peak."""
    peaks = {WINNER: peak, Candidate(micro_batch=4): 2 * peak}
    trials = [
        trial(
            number, candidate.micro_batch, OOM if candidate.micro_batch in oom else ok(taken, 0.1, 0.1, GIB), budget=GIB
        )
        for number, (candidate, taken) in enumerate(peaks.items(), start=1)
    ]  # fmt: skip
    row = cell(NIGHTS[place], name, tokens_per_second=speed, interval=speed / 100, budget=GIB, **fields)
    return RunRows(cell=row, trials=tuple(trials))


def fill(store, count=8, **fields):
    rng = random.Random(0)
    for place in range(count):
        store.add(night(place, **{"speed": 100 * math.exp(rng.gauss(0, 0.005)), **fields}))


def kinds(comparison):
    return [(change.cell, change.kind, change.regressed) for change in comparison.changes]


def test_a_night_like_those_before_is_good(store):
    fill(store)
    store.add(night(8))
    found = compare_night(store, "nightly", NIGHTS[8], Thresholds())
    assert found.changes == ()
    assert found.exit_code == ExitCode.OK
    assert [row.night for row in store.good("nightly", NIGHTS[9], 1)] == []
    store.add(night(9))
    assert [row.night for row in store.good("nightly", NIGHTS[9], 1)] == [NIGHTS[8]]


def test_a_slower_night_is_told_with_what_it_is_beside(store):
    fill(store)
    newer = HERE.model_copy(update={"packages": {"torch": "2.14.0"}, "driver": "580.1"})
    store.add(night(8, speed=90.0, environment=newer))
    found = compare_night(store, "nightly", NIGHTS[8], Thresholds())
    (change,) = found.regressions
    assert (change.cell, change.kind, change.against) == ("gpt2-small", "throughput", NIGHTS[7])
    assert change.now == pytest.approx(90)
    assert change.chance < 0.0005
    assert change.beside == ("driver: none -> 580.1", "torch: 2.13.0 -> 2.14.0")
    assert found.exit_code == ExitCode.REGRESSION


def test_a_regressed_night_is_no_measure_for_the_next(store):
    fill(store)
    for place in (8, 9):
        store.add(night(place, speed=90.0))
        (change,) = compare_night(store, "nightly", NIGHTS[place], Thresholds()).regressions
        assert change.against == NIGHTS[7]


def test_what_came_since_a_moment_may_be_the_new_normal(store):
    fill(store)
    thresholds = Thresholds(since="20261109")
    store.add(night(8, speed=90.0))
    found = compare_night(store, "nightly", NIGHTS[8], thresholds)
    assert [one.cell for one in found.uncompared] == ["gpt2-small"]
    store.add(night(9, speed=90.0))
    assert compare_night(store, "nightly", NIGHTS[9], thresholds).changes == ()


def test_a_slow_decline_is_seen_beside_the_median(store):
    for place in range(8):
        store.add(night(place, speed=100 * 0.99**place))
    store.add(night(8, speed=100 * 0.99**8 * 0.97))
    thresholds = Thresholds(false_alarms=0.01)
    (change,) = compare_night(store, "nightly", NIGHTS[8], thresholds).regressions
    assert change.nights == 7


def test_a_fall_that_is_sure_but_small_is_not_worth_telling(store):
    fill(store, 20)
    store.add(night(20, speed=98.5))
    assert compare_night(store, "nightly", NIGHTS[20], Thresholds(false_alarms=0.2)).changes == ()


def test_a_noisy_night_proves_little(store):
    fill(store)
    rows = night(8, speed=90.0)
    noisy = rows.cell.model_copy(update={"interval": 9.0})
    store.add(rows.model_copy(update={"cell": noisy}))
    assert compare_night(store, "nightly", NIGHTS[8], Thresholds()).changes == ()


def test_predictions_need_no_statistics(store):
    simulated = HERE.model_copy(update={"evidence": "predicted"})
    store.add(night(0, environment=simulated))
    store.add(night(1, speed=97.0, environment=simulated))
    (change,) = compare_night(store, "nightly", NIGHTS[1], Thresholds()).regressions
    assert (change.kind, change.chance) == ("throughput", None)


def test_a_larger_peak_is_told_once_for_a_cell_with_the_winners_first(store):
    fill(store)
    store.add(night(8, peak=int(1.03 * 300 * MIB)))
    (change,) = compare_night(store, "nightly", NIGHTS[8], Thresholds()).regressions
    assert change.kind == "peak"
    assert change.before == 300 * MIB
    assert change.candidate.endswith("micro-batch 2")
    assert "1 other candidate" in change.what


@pytest.mark.parametrize(
    ("before", "now", "reference"),
    [
        ([300] * 5, 302, None), ([300] * 5, 304, 300), ([300], 304, 300),
        ([300, 306, 300, 306], 306, None),  # nights differ by so much
        ([300, 302, 304, 306, 308], 310, 304),  # a slow growth, seen beside the median
        ([100] * 3, 101, None), ([100] * 3, 103, 100),  # what launches differ by counts for more than a share
    ],
)  # fmt: skip
def test_a_peak_has_grown_beyond_what_nights_differ_by(before, now, reference):
    found = grown([value * MIB for value in before], now * MIB, Thresholds(), "cpu")
    assert found == (None if reference is None else reference * MIB)


def test_out_of_memory_where_it_fitted(store):
    fill(store)
    store.add(night(8, oom=(4,)))
    (change,) = compare_night(store, "nightly", NIGHTS[8], Thresholds()).regressions
    assert change.kind == "oom"
    assert change.candidate.endswith("micro-batch 4")
    store.add(night(9, oom=(4,), state="nothing_fits", winner=None, reason="none fits"))
    found = compare_night(store, "nightly", NIGHTS[9], Thresholds()).regressions
    assert [one.kind for one in found] == ["oom", "oom"]


def test_an_oom_at_the_very_edge_is_told_and_no_regression(store):
    fill(store, peak=GIB // 2 - MIB)
    store.add(night(8, peak=GIB // 2 - MIB, oom=(4,)))
    assert kinds(compare_night(store, "nightly", NIGHTS[8], Thresholds())) == [("gpt2-small", "oom", False)]


def test_another_winner_is_told_and_a_regression_only_where_asked_for(store):
    fill(store)
    other = Candidate(micro_batch=8)
    store.add(night(8, winner=other, alternatives=(WINNER,)))
    assert kinds(compare_night(store, "nightly", NIGHTS[8], Thresholds(winner="fail"))) == [
        ("gpt2-small", "winner", False)
    ]
    store.add(night(9, winner=Candidate(micro_batch=16), alternatives=()))
    strict = compare_night(store, "nightly", NIGHTS[9], Thresholds(winner="fail"), keep=False)
    assert kinds(strict) == [("gpt2-small", "winner", True)]
    assert compare_night(store, "nightly", NIGHTS[9], Thresholds()).exit_code == ExitCode.OK


def test_what_a_machine_broke_is_not_compared_and_says_nothing_of_the_model(store):
    fill(store)
    store.add(night(8, state="failed", reason="the node is gone", winner=None))
    store.add(night(8, name="new"))
    found = compare_night(store, "nightly", NIGHTS[8], Thresholds())
    assert [(one.cell, one.state) for one in found.uncompared] == [
        ("gpt2-small", "failed"),
        ("new", "proven"),
    ]
    assert found.exit_code == ExitCode.OK


def test_a_model_that_fails_where_it_won_is_a_regression(store):
    fill(store)
    store.add(night(8, state="model_error", reason="ValueError: no", winner=None))
    assert kinds(compare_night(store, "nightly", NIGHTS[8], Thresholds())) == [("gpt2-small", "failed", True)]


def test_two_nights_are_compared_whatever_became_of_them(store):
    fill(store)
    store.add(night(8, speed=90.0))
    compare_night(store, "nightly", NIGHTS[8], Thresholds())
    store.add(night(9, speed=90.0))
    assert compare_two(store, "nightly", NIGHTS[8], NIGHTS[9], Thresholds()).changes == ()
    (change,) = compare_two(store, "nightly", NIGHTS[2], NIGHTS[9], Thresholds()).regressions
    assert (change.kind, change.against) == ("throughput", NIGHTS[2])


def test_a_night_that_is_not_there_is_told_with_the_nearest(store):
    from autotune.errors import InputError

    fill(store, 1)
    for sweep, when, about in (("nightly", "20261102T000000Z", "night"), ("nigtly", NIGHTS[0], "sweep")):
        with pytest.raises(InputError) as caught:
            compare_night(store, sweep, when, Thresholds())
        assert caught.value.about == (about,)


def test_false_alarms_come_as_often_as_the_level_says():
    """1,000 cells that differ from night to night by 3%, which no night tells of itself: at 1%, about 20 alarms."""
    rng = random.Random(1)
    levels, alarms = 0.01, 0
    histories = {
        f"c{place}": [
            cell(NIGHTS[day], f"c{place}", tokens_per_second=100 * math.exp(rng.gauss(0, 0.03)), interval=0.1)
            for day in range(8)
        ]
        for place in range(1000)
    }
    spread = spreads({name: rows[:7] for name, rows in histories.items()})
    for name, rows in histories.items():
        last, median = falls(rows[7], rows[:7], spread[name])
        assert spread[name].degrees > 100
        alarms += (last.chance < levels) + (median.chance < levels)
    assert 8 <= alarms <= 34
    assert quantile(levels, 1000) > 2


def test_one_cell_of_few_nights_is_told_from_what_runs_say_of_their_drift():
    quiet, noisy = (
        spreads({"c": [cell(NIGHTS[0], tokens_per_second=100.0, interval=0.1, drift=drift)]})["c"]
        for drift in (0.001, 0.05)
    )
    assert quiet.degrees == noisy.degrees == 4
    assert noisy.variance == pytest.approx(0.05**2)
    assert 0 < quiet.variance < 0.01**2


def test_more_nights_than_are_compared_tell_how_nights_differ():
    rows = [cell(NIGHTS[day], tokens_per_second=100.0 + day % 2, interval=0.1) for day in range(7)]
    few = spreads({"c": rows})["c"]
    many = spreads({"c": rows}, {"c": [100.0 + day % 2 for day in range(30)]})["c"]
    assert (few.degrees, many.degrees) == (10, 33)


def test_thresholds_read_percent():
    assert Thresholds.load({"peak": "3%", "throughput": 0.05}, "t") == Thresholds(peak=0.03, throughput=0.05)
