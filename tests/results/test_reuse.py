from datetime import UTC, datetime, timedelta

import pytest

from autotune.outcome import Ok
from autotune.racing import Incumbent, SpeedBound
from autotune.results.find import open_store
from autotune.results.record import record_run
from autotune.results.reuse import StoredTrials, holds
from autotune.results.store import Known, Query
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.testing.arithmetic import Arithmetic, ok
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import make_spec
from tests.results.stores import OOM


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "results") as store:
        yield store


def a_night(store, folder, night, executor=None, seconds=7 * 86400.0, until=None):
    """Run a cell with what the store knows, and keep what came of it; return what was launched."""
    executor = executor or ArithmeticExecutor(Arithmetic(budget=1000))
    spec = make_spec()
    paths = create_run(spec, folder / night)
    tune(spec, paths, executor, recorded=StoredTrials(store, spec, seconds, until))
    store.add(record_run(paths, "nightly", night, "cell"))
    return [kind for kind, _ in executor.launched], paths


def test_the_next_night_probes_nothing_again_and_proves_its_winner_again(store, tmp_path):
    first, before = a_night(store, tmp_path, "n1")
    launched, paths = a_night(store, tmp_path, "n2")
    assert first.count("train") > launched.count("train")
    finals = len(read_record(paths.journal).rematches)
    assert launched.count("train") == finals, "what is left is of the finals"
    assert launched.count("prove") >= 1
    history = read_record(paths.journal).history
    assert [one.outcome for one in history] == [one.outcome for one in read_record(before.journal).history]
    assert all("measured by" in one.why and "n1" in one.why for one in history)
    rows = list(store.query(Query(night=("n2",))))
    assert {row["kind"] for row in rows if row["reused"]} == {"probe"}


def test_what_was_reused_is_never_the_source_of_more(store, tmp_path):
    a_night(store, tmp_path, "n1")
    a_night(store, tmp_path, "n2")
    _, paths = a_night(store, tmp_path, "n3")
    assert all("night n1" in one.why for one in read_record(paths.journal).history)


@pytest.mark.parametrize("change", [{"driver": "580.1"}, {"name": "another"}])
def test_nothing_is_reused_of_another_driver_or_device(store, tmp_path, change):
    first, _ = a_night(store, tmp_path, "n1")
    other = ArithmeticExecutor(Arithmetic(budget=1000))
    other.alter_device(**change)
    assert a_night(store, tmp_path, "n2", other)[0] == first


def test_nothing_is_reused_that_is_older_than_stated(store, tmp_path):
    first, _ = a_night(store, tmp_path, "n1")
    later = datetime.now(UTC) + timedelta(hours=2)
    assert a_night(store, tmp_path, "n2", seconds=3600, until=later)[0] == first


def known(outcome, budget=1000):
    return Known(night="n", run="r", number=1, time="t", budget=budget, outcome=outcome)


def test_a_verdict_holds_under_budgets_that_it_says_something_of():
    fitted = holds(known(ok(500)), 600, None)
    assert isinstance(fitted, Ok)
    assert fitted.memory.budget == 600
    assert holds(known(ok(500)), 400, None) is None
    assert holds(known(OOM), 1000, None) == OOM
    assert holds(known(OOM), 1001, None) is None


def test_a_bound_holds_where_the_incumbent_is_faster_still():
    bound = SpeedBound(seconds=2.0, fastest=2.1, share=0.01, beaten_by=1.0, steps=3)
    raced = ok(500).model_copy(update={"timing": None, "bound": bound})

    def beating(seconds):
        return Incumbent(seconds=seconds, deviation=0.0, degrees=3, drift=0.0)

    assert holds(known(raced), 1000, None) is None
    assert holds(known(raced), 1000, beating(2.5)) is None
    assert holds(known(raced), 1000, beating(1.5)) is not None
