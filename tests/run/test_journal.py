import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from autotune.candidate import Candidate
from autotune.errors import InputError, JournalError, RunInUse
from autotune.run import record
from autotune.run.events import Asked, Finished, Inspected, Opened, ProofStarted, Started
from autotune.run.journal import Journal, read_record
from autotune.run.record import Lines, Tally
from autotune.run.sealed_lines import sealed
from autotune.testing.arithmetic import Arithmetic, ok
from tests.fakes.executor import FACTS, ArithmeticExecutor


def started(number):
    return Started(
        number=number, candidate=Candidate(micro_batch=number), node="grow", why="because", time="now"
    )


def finished(number):
    return Finished(number=number, outcome=ok(10), seconds=1.5)


def begin(journal):
    """Write what comes before the first probe."""
    for entry in (
        Asked(spec={}, digest=""),
        Opened(version="0", site=ArithmeticExecutor(Arithmetic(budget=1000)).describe(), time="now"),
        Inspected(facts=FACTS, baseline=0, budget=1000),
    ):
        journal.append(entry)


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens the journal of this test's run folder, in which a run began."""
    with Journal(tmp_path / "journal.jsonl", tmp_path / "lock") as journal:
        begin(journal)
    return lambda: Journal(tmp_path / "journal.jsonl", tmp_path / "lock")


def test_what_is_appended_is_read_back(opened, tmp_path):
    with opened() as journal:
        journal.append(started(1))
        journal.append(finished(1))
        assert journal.record == read_record(tmp_path / "journal.jsonl")
    with opened() as journal:
        (trial,) = journal.record.history
        assert (trial.number, trial.candidate.micro_batch, trial.outcome.kind) == (1, 1, "ok")
        assert journal.record.next_number == 2


def test_reading_a_short_journal_leaves_garbage_to_the_next_collection(opened, tmp_path):
    """A process that runs many searches would keep it for long."""

    class Cyclic:
        def __init__(self):
            self.itself = self

    garbage = Cyclic()
    alive = weakref.ref(garbage)
    gc.disable()
    try:
        read_record(tmp_path / "journal.jsonl")
        del garbage
        assert alive() is not None
        gc.collect(0)
        assert alive() is None
    finally:
        gc.enable()


def test_a_started_probe_without_an_end_is_found(opened):
    with opened() as journal:
        journal.append(started(1))
        assert (journal.record.pending, journal.record.tries("probe", 1)) == ((started(1),), 1)
        journal.append(started(1))
        assert (journal.record.pending, journal.record.tries("probe", 1)) == ((started(1),), 2)
        journal.append(finished(1))
        assert journal.record.pending == ()
        journal.append(ProofStarted(number=1, time="now"))
        assert journal.record.tries("proof", 1) == 1


def test_a_line_is_taken_in_once_however_many_there_are(opened, monkeypatch):
    """Asked after each line, as a tuner does: no line is copied, or added up, or made a trial of, again."""
    taken, copied, made = [], [], []
    take, make, lines = Tally.take, record.Trial, Lines.__init__
    monkeypatch.setattr(Tally, "take", lambda tally, entry: taken.append(entry) or take(tally, entry))
    monkeypatch.setattr(Lines, "__init__", lambda self, *them: copied.append(them) or lines(self, *them))
    monkeypatch.setattr(record, "Trial", lambda **fields: made.append(fields["number"]) or make(**fields))
    with opened() as journal:
        assert journal.record.next_number == 1
        for began in (taken, copied, made):
            began.clear()
        for number in range(1, 31):
            journal.append(started(number))
            assert [one.number for one in journal.record.pending] == [number]
            journal.append(finished(number))
            assert [trial.number for trial in journal.record.history] == list(range(1, number + 1))
        assert (len(taken), copied, made) == (60, [], list(range(1, 31)))


def test_a_record_does_not_change_when_its_journal_goes_on(opened):
    with opened() as journal:
        journal.append(started(1))
        early = journal.record
        assert early.pending == (started(1),)
        journal.append(finished(1))
        assert len(journal.record.entries) == len(early.entries) + 1
        assert (early.entries[-1], list(early.entries)[-1], next(reversed(early.entries))) == (
            started(1),
        ) * 3
        assert early.entries[-2:] == tuple(early.entries)[-2:]
        with pytest.raises(IndexError):
            early.entries[len(early.entries)]
        assert (early.pending, early.history) == ((started(1),), ())
        assert (journal.record.pending, len(journal.record.history)) == ((), 1)
        assert early.with_line(started(2)).entries[-1] == started(2), "another line followed it before"
        assert journal.record.entries[-1] == finished(1)
        assert early.entries != journal.record.entries
        assert early.pending == (started(1),)


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_torn_last_line_is_dropped_and_overwritten(opened, tmp_path, cut):
    path = tmp_path / "journal.jsonl"
    with opened() as journal:
        journal.append(started(1))
        journal.append(finished(1))
    path.write_bytes(path.read_bytes()[:-cut])
    with opened() as journal:
        assert journal.record.history == ()
        journal.append(finished(1))
    assert len(read_record(path).history) == 1


def test_a_torn_middle_is_an_error_and_changes_nothing(opened, tmp_path):
    path = tmp_path / "journal.jsonl"
    with opened() as journal:
        journal.append(started(1))
        journal.append(finished(1))
    damaged = path.read_bytes().replace(b'"node"', b'"nod', 1)
    path.write_bytes(damaged)
    with pytest.raises(JournalError) as caught, opened():
        pass
    assert (caught.value.kind, caught.value.line) == ("damaged", 4)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("lines_after", [0, 1])
def test_a_line_of_another_version_is_said_and_never_dropped(opened, tmp_path, lines_after):
    path = tmp_path / "journal.jsonl"
    last = path.read_bytes().splitlines()[-1]
    for line in (b'{"type":"of another time"}', finished(1).model_dump_json().encode())[: 1 + lines_after]:
        last = sealed(line, last)
        path.write_bytes(path.read_bytes() + last + b"\n")
    written = path.read_bytes()
    with pytest.raises(InputError) as caught, opened():
        pass
    assert caught.value.about == ("run",)
    assert f"{path}:4: " in str(caught.value)
    assert path.read_bytes() == written


def test_two_tuners_on_one_run_are_refused(opened):
    with (
        opened(),
        pytest.raises(RunInUse, match=rf"another autotune \(process {os.getpid()}\)") as caught,
        opened(),
    ):
        pass
    assert caught.value.process == os.getpid()
    with opened():
        pass


def test_a_full_disk_keeps_everything_recorded(tmp_path):
    # RLIMIT_FSIZE makes the kernel refuse writes beyond a size, as a full disk does; in a process of its own.
    script = f"""
import resource, signal, sys
from pathlib import Path
from tests.run.test_journal import begin, started, finished
from autotune.errors import JournalError
from autotune.run.journal import Journal, read_record
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
root = Path({str(tmp_path)!r})
with Journal(root / "journal.jsonl", root / "lock") as journal:
    begin(journal); journal.append(started(1)); journal.append(finished(1))
    size = (root / "journal.jsonl").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, size + 20))
    try:
        journal.append(started(2))
    except JournalError as error:
        print(error)
assert (root / "journal.jsonl").stat().st_size == size
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    assert "cannot be written" in done.stdout
    assert "Everything up to this moment is recorded" in done.stdout
    assert len(read_record(tmp_path / "journal.jsonl").history) == 1


def test_a_foreign_folder_is_refused(tmp_path):
    with pytest.raises(InputError):
        read_record(tmp_path / "journal.jsonl")
    with pytest.raises(InputError) as caught, Journal(tmp_path / "no" / "j", tmp_path / "no" / "lock"):
        pass
    assert caught.value.about == ("run",)
