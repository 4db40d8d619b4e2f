import pytest

from autotune.errors import NothingFits
from autotune.outcome import Ok
from autotune.results.find import open_store
from autotune.results.record import record_run
from autotune.results.store import Query
from autotune.run.folder import create_run
from autotune.run.journal import read_record
from autotune.run.loop import tune
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import make_spec, start


def test_a_run_has_a_row_for_each_measurement_and_one_for_its_cell(tmp_path):
    best, paths = start(tmp_path, ArithmeticExecutor(Arithmetic(budget=1000)))
    rows = record_run(paths, "nightly", "20261101T000000Z", "made-small")
    record = read_record(paths.journal)
    kinds = [row.kind for row in rows.trials]
    assert kinds.count("probe") == len(record.history)
    assert kinds.count("rematch") == len(record.rematches)
    assert kinds.count("proof") == len(record.proofs) >= 1
    cell = rows.cell
    assert cell.state == "proven"
    assert cell.winner == best.candidate
    assert cell.tokens_per_second == best.tokens_per_second
    assert cell.peak == best.peak()
    proof = record.proofs[-1].outcome
    assert isinstance(proof, Ok)
    assert cell.step_seconds == proof.step_seconds
    assert 0 < cell.drift < best.drift.share
    assert cell.environment.packages["torch"] == record.opened_at.machine.packages["torch"]
    assert cell.lines == len(record.entries)


def test_a_winners_peak_is_its_proofs_where_that_took_more(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    best, _ = start(tmp_path / "first", executor)
    outcome = executor.device.outcome(best.candidate)
    assert isinstance(outcome, Ok)
    more = outcome.memory.model_copy(update={"reserved": outcome.memory.reserved + 3})
    executor.proofs[best.candidate] = outcome.model_copy(update={"memory": more})
    cell = record_run(start(tmp_path / "again", executor)[1], "nightly", "n", "c").cell
    assert (cell.winner, cell.peak) == (best.candidate, more.peak())
    assert cell.peak > outcome.memory.peak()


def test_rows_of_a_record_are_the_same_however_often_it_is_read(tmp_path):
    _, paths = start(tmp_path, ArithmeticExecutor(Arithmetic(budget=1000)))
    first = record_run(paths, "nightly", "n", "c")
    assert record_run(paths, "nightly", "n", "c") == first
    with open_store(tmp_path / "results") as store:
        store.add(first)
        assert store.cells("nightly") == (first.cell,)
        assert len(list(store.query(Query()))) == len(first.trials)


def test_a_run_that_never_began_is_a_cell_without_trials(tmp_path):
    paths = create_run(make_spec(), tmp_path)
    rows = record_run(paths, "nightly", "n", "c", "failed", "no node is up")
    assert rows.trials == ()
    assert (rows.cell.state, rows.cell.reason) == ("failed", "no node is up")
    assert record_run(paths, "nightly", "n", "c").cell.state == "interrupted"


def test_trials_that_measured_the_same_share_their_key_and_others_do_not(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    first = record_run(start(tmp_path / "a", executor)[1], "s", "n", "c")
    again = record_run(start(tmp_path / "b", executor)[1], "s", "n", "c")
    executor.alter_device(driver="570.1")
    newer = record_run(start(tmp_path / "c", executor)[1], "s", "n", "c")
    keys = [{row.candidate: row.key for row in rows.trials} for rows in (first, again, newer)]
    assert keys[0] == keys[1]
    assert len(set(keys[0].values())) == len(keys[0])
    assert not set(keys[0].values()) & set(keys[2].values())
    assert first.cell.environment.differences(newer.cell.environment) == ("driver: none -> 570.1",)


def test_a_cell_that_fits_nothing_says_why(tmp_path):
    executor = ArithmeticExecutor(Arithmetic(budget=1000))
    executor.alter_device(budget=1)
    executor.device = Arithmetic(budget=1)
    executor.answer = executor.device.outcome
    spec = make_spec()
    paths = create_run(spec, tmp_path)
    with pytest.raises(NothingFits):
        tune(spec, paths, executor)
    rows = record_run(paths, "nightly", "n", "c")
    assert rows.cell.state == "nothing_fits"
    assert rows.cell.reason
    assert rows.cell.winner is None
    assert all(row.outcome.kind == "oom" and row.fits is False for row in rows.trials)
