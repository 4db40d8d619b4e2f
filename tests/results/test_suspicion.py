"""A winner that seems slower than the nights before is proven again."""

import math
import random

import pytest

from autotune.errors import StoreError
from autotune.results.find import open_store
from autotune.results.regression import PROOFS, SUSPECTED, Spread, falls, slower, spreads, suspected
from autotune.results.reuse_key import asked_digest
from autotune.results.row import RunRows
from autotune.results.suspicion import Suspicion
from autotune.results.thresholds import Thresholds
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import BIG, make_spec, start
from tests.results.stores import cell

NIGHTS = [f"202611{day:02}T000000Z" for day in range(1, 31)]
SPEC = make_spec()


@pytest.fixture
def store(tmp_path):
    rng = random.Random(0)
    with open_store(tmp_path / "results") as store:
        for night in NIGHTS[:8]:
            speed = 100 * math.exp(rng.gauss(0, 0.01))
            store.add(
                RunRows(cell=cell(night, tokens_per_second=speed, interval=1.0, asked=asked_digest(SPEC)))
            )
        yield store


@pytest.fixture(scope="module")
def best(tmp_path_factory):
    return start(tmp_path_factory.mktemp("run"), ArithmeticExecutor(BIG))[0].model_copy(
        update={"tokens_per_second_interval": 1.0}
    )


def suspicion(store, name="gpt2-small", **thresholds):
    return Suspicion(store, SPEC, "nightly", NIGHTS[8], name, Thresholds(**thresholds))


def test_what_seems_slower_is_proven_again_until_it_does_not_or_as_often_as_may_be(store, best):
    asked = suspicion(store)
    assert asked.of(best, [90.0])
    assert not asked.of(best, [100.0])
    assert not asked.of(best, [98.5]), "not worth telling"
    assert asked.of(best, [90.0, 91.0])
    assert not asked.of(best, [93.0, 104.0])
    assert not asked.of(best, [90.0] * PROOFS)


def test_nothing_is_suspected_without_good_nights_before(store, best):
    assert not suspicion(store, "another").of(best, [50.0])
    assert not suspicion(store, since=NIGHTS[8]).of(best, [50.0])


def test_a_store_that_does_not_answer_has_no_doubts(store, best, monkeypatch):
    def refuse(*_):
        raise StoreError("gone")

    monkeypatch.setattr(type(store), "past", refuse)
    assert not suspicion(store).of(best, [50.0])


def test_several_proofs_tell_a_fall_that_one_does_not():
    """Nights differ by 3% because single proofs do: of one 10% may be chance, of the mean of five it is none."""
    rng = random.Random(3)
    past = [
        cell(NIGHTS[day], proofs=(100 * math.exp(rng.gauss(0, 0.03)),), interval=0.1, drift=0.03)
        for day in range(7)
    ]
    spread = Spread(0.03**2, 10)
    one = cell(NIGHTS[7], proofs=(90.0,), tokens_per_second=90.0, interval=0.1)
    several = one.model_copy(update={"proofs": (90.0, 93.5, 87.0, 92.0, 88.0)})
    assert slower(falls(one, past, spread), 0.001, Thresholds()) is None
    assert slower(falls(several, past, spread), 0.001, Thresholds()) is not None


def test_one_proof_as_fast_as_ever_clears_a_night_whose_busy_minute_lasted_for_others():
    """Of a night without a change: nights differ by 0.4%, and three proofs in a row were 4% slower."""
    speeds = (152.5, 152.9, 152.5, 151.9, 152.2, 151.8, 152.5)
    past = [
        cell(NIGHTS[day], proofs=(speed,), tokens_per_second=speed, interval=0.3, drift=0.0085)
        for day, speed in enumerate(speeds)
    ]
    spread = Spread(0.006**2, 30)
    proofs = (147.0, 145.8, 147.4, 151.7, 152.8)
    row = cell(NIGHTS[7], proofs=proofs[:3], tokens_per_second=proofs[2], interval=0.3, drift=0.0085)
    assert suspected(row, past, spread, Thresholds())
    cleared = row.model_copy(update={"proofs": proofs[:4], "tokens_per_second": proofs[3]})
    assert not suspected(cleared, past, spread, Thresholds())
    every = row.model_copy(update={"proofs": proofs, "tokens_per_second": proofs[4]})
    worst = falls(every, past, spread)[1]
    assert worst.chance < 0.001
    assert worst.share > Thresholds().throughput > worst.share_of_fastest
    assert slower((worst, worst), 0.001, Thresholds()) is None


def test_proofs_that_agree_tell_nothing_of_the_night_that_they_share():
    """What all proofs of a night have in common is not made surer by more of them."""
    past = [cell(NIGHTS[day], proofs=(100.0,), interval=0.1, drift=0.001) for day in range(7)]
    spread = Spread(0.03**2, 10)
    one = cell(NIGHTS[7], proofs=(90.0,), tokens_per_second=90.0, interval=0.1)
    again = one.model_copy(update={"proofs": (90.0,) * PROOFS})
    first, more = (falls(row, past, spread)[1].chance for row in (one, again))
    assert more == pytest.approx(first, rel=0.05)
    assert slower(falls(one, past, spread), SUSPECTED, Thresholds()) is not None


def test_alarms_come_as_seldom_as_the_level_says_with_proofs_that_are_repeated():
    """1,000 cells whose nights and whose proofs differ by 2% each: at 1%, about 20 alarms of two comparisons."""
    rng = random.Random(1)
    alarms, level, thresholds = 0, 0.01, Thresholds()

    def night(day):
        shift, first = rng.gauss(0, 0.02), rng.gauss(0, 0.02)
        return shift, cell(
            NIGHTS[day],
            tokens_per_second=1.0,
            proofs=(100 * math.exp(shift + first),),
            interval=0.0,
            drift=0.02,
        )

    for _ in range(1000):
        past = [night(day)[1] for day in range(20)]
        spread = spreads({"c": past})["c"]
        shift, row = night(20)
        while (
            len(row.proofs) < PROOFS and slower(falls(row, past, spread), SUSPECTED, thresholds) is not None
        ):
            row = row.model_copy(update={"proofs": (*row.proofs, 100 * math.exp(shift + rng.gauss(0, 0.02)))})
        alarms += slower(falls(row, past, spread), level, thresholds) is not None
    assert 2 <= alarms <= 30
