"""Whole nights on arithmetic: what cells come to, what fails alone, who goes first, and how a night ends early."""

from __future__ import annotations

import threading
from signal import SIGTERM, Signals

import pytest
from typer.testing import CliRunner

from autotune.api import load_run
from autotune.cli import app
from autotune.errors import RunInUse, StoreError
from autotune.interruption import Interruption
from autotune.outcome import Lost, Ok
from autotune.probe.launch import ended_by_all
from autotune.results.find import open_store
from autotune.results.regression import PROOFS
from autotune.run.events import Finished, Interrupted
from autotune.run.journal import read_record
from autotune.sweep.controller import ERROR, NightCallbacks
from autotune.sweep.journal import NightJournal, read_night
from autotune.sweep.night import new_night
from autotune.sweep.progress import progress_of
from autotune.sweep.start import asked_before, run_night
from autotune.testing.arithmetic import Arithmetic
from tests.fakes.executor import ArithmeticExecutor, crash, slower
from tests.fakes.runs import BIG
from tests.fakes.sweeps import ArithmeticExecution, anything, asked, write_sweep

ALL = ["gpt2-small-short-minimal", "gpt2-small-long-minimal", "tiny-llama-small-short-minimal",
       "tiny-llama-small-long-minimal"]  # fmt: skip


@pytest.fixture
def night(tmp_path):
    return new_night("nightly", tmp_path / "runs")


class Heard(NightCallbacks):
    def __init__(self) -> None:
        self.order: list[str] = []

    def started(self, cell) -> None:
        self.order.append(cell.id)


def test_every_cell_is_an_ordinary_run_with_its_winner(tmp_path, night):
    ended = run_night(asked(tmp_path, results="results"), night, execution=ArithmeticExecution())
    record = read_night(night)
    assert record.closed
    assert ended.record.ended == record.ended
    assert list(record.asked.cells) == ALL
    for cell in ALL:
        entry, run = record.ended[cell], load_run(night.run(cell).root)
        assert entry.state == "proven"
        assert run.best.candidate.key() == entry.winner.key
        assert entry.winner.tokens_per_second == run.best.tokens_per_second
        assert entry.probes == len(run.record.history) > 0
    with open_store(tmp_path / "results", create=False) as store:
        rows = store.cells("nightly")
        assert {(row.cell, row.state) for row in rows} == {(cell, "proven") for cell in ALL}
        assert store.count() > sum(entry.probes for entry in record.ended.values())  # and finals, and proofs


def test_a_cell_that_fails_in_any_way_ends_none_of_the_others(tmp_path, night):
    def make(spec):
        executor = ArithmeticExecutor(BIG)
        name = f"{spec.model.name} {spec.goal.seq_len}"
        if name == "gpt2 64":
            executor.inspection = crash()
        if name == "gpt2 128":
            executor.device = Arithmetic(budget=1).in_units(1)
            executor.answer = executor.device.outcome
        if name == "tiny-llama 64":
            executor.describe = None  # a fault of autotune itself
        return executor

    entries = run_night(
        asked(tmp_path, results="results"), night, execution=ArithmeticExecution(make)
    ).record.ended
    assert [entries[cell].state for cell in ALL] == ["model_error", "nothing_fits", "failed", "proven"]
    assert "ValueError: no" in entries[ALL[0]].why
    assert "TypeError" in entries[ALL[2]].why
    assert "Traceback" in (night.run(ALL[2]).root / ERROR).read_text()
    with open_store(tmp_path / "results", create=False) as store:
        assert {row.state for row in store.cells("nightly")} == {entry.state for entry in entries.values()}


def test_what_this_machine_failed_is_tried_again_and_nothing_else(tmp_path, night):
    broken = ArithmeticExecution(lambda spec: None if spec.goal.seq_len == 64 else ArithmeticExecutor(BIG))
    first = run_night(asked(tmp_path), night, execution=broken).record
    assert sum(entry.state == "failed" for entry in first.ended.values()) == 2
    again = ArithmeticExecution()
    second = run_night(asked_before(night, anything), night, execution=again).record
    assert {entry.state for entry in second.ended.values()} == {"proven"}
    assert {spec.goal.seq_len for spec, _ in again.runs} == {64}
    lines = night.journal.read_bytes()
    run_night(asked_before(night, anything), night, execution=again)
    assert night.journal.read_bytes() == lines  # a night that is over is left alone


def test_as_many_runs_at_a_time_as_there_are_devices_and_no_more(tmp_path, night):
    together, most, now = threading.Barrier(2, timeout=30), [0], [0]
    lock = threading.Lock()

    class Counting(ArithmeticExecutor):
        def run(self, request, folder, **options):
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            if request.kind == "inspect":
                together.wait()  # which a single run at a time would wait for in vain
            try:
                return super().run(request, folder, **options)
            finally:
                with lock:
                    now[0] -= 1

    run_night(asked(tmp_path), night, execution=ArithmeticExecution(lambda _: Counting(BIG)))
    assert most == [2]
    assert {entry.state for entry in read_night(night).ended.values()} == {"proven"}


def test_cells_of_a_higher_priority_go_first_and_each_gpu_is_used(tmp_path, night):
    heard = Heard()
    execution = ArithmeticExecution()
    sweep = asked(
        tmp_path, cells_at_once=1, include=[{"model": "tiny-llama", "goal": "long", "priority": 1}],
        hardware={"small": {"device": ["cuda:2", "cuda:5"]}},
    )  # fmt: skip
    run_night(sweep, night, heard, execution)
    assert heard.order == [ALL[3], ALL[0], ALL[1], ALL[2]]
    assert {device.index for _, device in execution.runs} == {2}
    other = new_night("nightly", tmp_path / "runs")
    barrier = threading.Barrier(2, timeout=30)

    class Meeting(ArithmeticExecutor):
        def run(self, request, folder, **options):
            if request.kind == "inspect":
                barrier.wait()
            return super().run(request, folder, **options)

    both = ArithmeticExecution(lambda _: Meeting(BIG))
    run_night(asked(tmp_path, hardware={"small": {"device": ["cuda:2", "cuda:5"]}}), other, execution=both)
    assert {device.index for _, device in both.runs} == {2, 5}


def test_a_second_controller_is_refused(tmp_path, night):
    sweep = asked(tmp_path)
    with NightJournal(night), pytest.raises(RunInUse):
        run_night(sweep, night, execution=ArithmeticExecution())


def test_an_interruption_ends_what_is_under_way_and_is_resumed(tmp_path, night):
    """One run waits in its probe when the signal comes; another has just ended."""
    waiting = threading.Event()

    class Waiting(ArithmeticExecutor):
        def run(self, request, folder, **options):
            if request.kind != "train":
                return super().run(request, folder, **options)
            released = threading.Event()
            with ended_by_all(released.set):
                waiting.set()
                assert released.wait(30)
            lost = Lost(cause="supervisor", phase="forward", message="ended")
            return super().run(request, folder, **options).model_copy(update={"answer": lost})

    class Interrupting(NightCallbacks):
        def ended(self, entry, record) -> None:
            assert waiting.wait(30)
            raise Interruption(SIGTERM)

    sweep = asked(tmp_path, hardware={"small": {"device": "cpu:1GiB", "at_once": 2}})
    executor = ArithmeticExecution(
        lambda spec: (
            Waiting if spec.model.name == "gpt2" and spec.goal.seq_len == 64 else ArithmeticExecutor
        )(BIG)
    )
    with pytest.raises(Interruption):
        run_night(sweep, night, Interrupting(), executor)
    assert [thread for thread in threading.enumerate() if thread.name in ALL] == []
    record = read_night(night)
    assert record.interrupted.why == Signals(SIGTERM).name
    assert ALL[0] in record.under_way
    waited = read_record(night.run(ALL[0]).journal)
    assert isinstance(waited.entries[-1], Interrupted)
    assert (waited.pending[0].number, waited.tries("probe", 1)) == (1, 0)  # an interruption does not count
    progress = progress_of(night)
    assert (progress.controller, progress.interrupted, progress.closed) == (None, "SIGTERM", False)
    assert progress.pending + len(progress.under_way) + progress.ended == 4
    done = run_night(asked_before(night, anything), night, execution=ArithmeticExecution()).record
    assert done.closed
    assert {entry.state for entry in done.ended.values()} == {"proven"}


def test_what_the_store_did_not_take_is_stored_when_it_is_resumed(tmp_path, night, monkeypatch):
    from autotune.results.sql import SqlStore

    def refusing(self, rows):
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SqlStore, "add", refusing)
        with pytest.raises(StoreError, match=r"the disk is full\. The results of 4 cells"):
            run_night(asked(tmp_path, results="results"), night, execution=ArithmeticExecution())
    assert read_night(night).closed
    execution = ArithmeticExecution()
    record = run_night(asked_before(night, anything), night, execution=execution).record
    assert execution.runs == []
    assert record.unstored == ()
    with open_store(tmp_path / "results", create=False) as store:
        assert {row.cell for row in store.cells("nightly")} == set(ALL)


def test_a_night_that_cannot_be_read_is_not_resumed(tmp_path, night):
    from autotune.errors import JournalError

    run_night(asked(tmp_path), night, execution=ArithmeticExecution())
    content = night.journal.read_text()
    night.journal.write_text(content.replace('"state":"proven"', '"state":"failed"', 1))
    with pytest.raises(JournalError):
        asked_before(night, anything)


def three_nights(tmp_path, last) -> list:
    """Return two nights in which nothing changed, and one whose runs get their executors of `last`."""
    tmp_path.mkdir(exist_ok=True)
    sweep = asked(tmp_path, results="results", regression={"throughput": "5%"})
    found = []
    for make in (None, None, last):
        night = new_night("nightly", tmp_path / "runs")
        found.append(run_night(sweep, night, execution=ArithmeticExecution(make)))
    return found


def test_what_got_slower_is_told_with_the_files_that_a_ci_reads(tmp_path):
    def half_as_fast(spec):
        executor = ArithmeticExecutor(BIG)
        if spec.model.name == "gpt2":
            executor.answer = lambda one: (lambda out: slower(out, 2) if out.kind == "ok" else out)(
                BIG.outcome(one)
            )
        return executor

    *before, last = three_nights(tmp_path, half_as_fast)
    for night in before:
        assert night.record.compared.changes == ()
    found = last.record.compared.regressions
    assert {(change.cell, change.kind) for change in found} == {(cell, "throughput") for cell in ALL[:2]}
    assert all(change.against == before[1].paths.id for change in found)
    assert (last.paths.root / "junit.xml").read_text().count("<failure") == 2
    assert "regressed" in (last.paths.root / "summary.md").read_text()
    shown = CliRunner().invoke(app, ["sweep", "report", str(last.paths.root)], env={"COLUMNS": "200"}).stdout
    assert shown.count("REGRESSED") == 2


def proofs_of(night, cell):
    return [proof.outcome.kind for proof in read_record(night.paths.run(cell).journal).proofs]


def test_what_seems_slower_is_proven_again_before_it_is_said(tmp_path):
    class SlowOnce(ArithmeticExecutor):
        """Its first proof meets a bad minute."""

        def run(self, request, folder, **more):
            found = super().run(request, folder, **more)
            if [kind for kind, _ in self.launched].count("prove") == 1 and request.kind == "prove":
                return found.model_copy(update={"answer": slower(found.answer, 1.08)})
            return found

    class Slow(ArithmeticExecutor):
        def run(self, request, folder, **more):
            found = super().run(request, folder, **more)
            if not isinstance(found.answer, Ok):
                return found
            return found.model_copy(update={"answer": slower(found.answer, 1.5)})

    def of_one_cell(executor):
        return lambda spec: (
            executor if (spec.model.name, spec.goal.seq_len) == ("gpt2", 64) else ArithmeticExecutor
        )(BIG)

    *_, once = three_nights(tmp_path / "once", of_one_cell(SlowOnce))
    assert [len(proofs_of(once, cell)) for cell in ALL] == [2, 1, 1, 1]
    assert once.record.compared.regressions == ()
    *_, always = three_nights(tmp_path / "always", of_one_cell(Slow))
    assert [len(proofs_of(always, cell)) for cell in ALL] == [PROOFS, 1, 1, 1]
    (change,) = always.record.compared.regressions
    assert (change.cell, change.kind) == (ALL[0], "throughput")
    assert f"in {PROOFS} proofs" in change.what
    with open_store(tmp_path / "always" / "results", create=False) as store:
        rows = {row.cell: row for row in store.cells("nightly", [always.paths.id])}
    assert [len(rows[cell].proofs) for cell in ALL] == [PROOFS, 1, 1, 1]


def test_the_verb_exits_with_5_where_something_regressed_and_with_0_where_nothing_did(tmp_path, monkeypatch):
    from contextlib import nullcontext

    def verb(make) -> int:
        monkeypatch.setattr(
            "autotune.sweep.start.LocalExecution", lambda _: nullcontext(ArithmeticExecution(make))
        )
        words = ["sweep", "run", str(tmp_path / "sweep.yaml"), "--runs", str(tmp_path / "runs")]
        return CliRunner().invoke(app, words).exit_code

    def half_as_fast(_):
        executor = ArithmeticExecutor(BIG)
        executor.answer = lambda one: (lambda out: slower(out, 2) if out.kind == "ok" else out)(
            BIG.outcome(one)
        )
        return executor

    write_sweep(tmp_path, results="results")
    assert [verb(None), verb(None), verb(half_as_fast)] == [0, 0, 5]
    assert len(list((tmp_path / "runs" / "sweeps" / "nightly").glob("*/report.html"))) == 3


def test_what_was_measured_within_the_age_is_not_probed_again_but_proven(tmp_path):
    sweep = asked(tmp_path, results="results", reuse_within="7d")
    reused = []
    for _ in range(2):
        night = new_night("nightly", tmp_path / "runs")
        record = run_night(sweep, night, execution=ArithmeticExecution()).record
        assert {entry.state for entry in record.ended.values()} == {"proven"}
        runs = [read_record(night.run(cell).journal) for cell in ALL]
        assert all(run.proofs and run.proofs[-1].passed for run in runs)
        lines = [entry for run in runs for entry in run.entries if isinstance(entry, Finished)]
        reused.append([entry.reused for entry in lines if entry.reused])
    assert reused[0] == []
    assert len(reused[1]) >= len(ALL)
    assert all("night " in source for source in reused[1])
