"""A controller that is killed at each line of its journals: the night goes on as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from autotune.errors import RunInUse
from autotune.run.journal import read_record
from autotune.run.paths import RunPaths
from autotune.run.sealed_lines import SealedLines
from autotune.sweep.journal import NightJournal, read_night
from autotune.sweep.night import NightPaths, new_night
from autotune.sweep.start import asked_before, run_night
from benchmarks.fault_tuner import TRIAL, remaining
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import BIG
from tests.fakes.stopping import Killed
from tests.fakes.sweeps import ArithmeticExecution, anything, asked, finished_already

ROOT = Path(__file__).parents[2]
SMALL = {
    "matrix": {"model": ["gpt2", "tiny-llama"], "hardware": "small", "goal": "short", "space": "minimal"},
    "limits": {"max_probes": 2},
    "results": "results",
}
"""Two cells of two probes, both under way at a time."""


@contextmanager
def killed_after(count: int) -> Iterator[list[int]]:
    """Let nothing more reach the disk after so many lines of all journals: what SIGKILL leaves of this process."""
    append, written, lock = SealedLines.append, [0], threading.Lock()

    def watched(lines: SealedLines, entry: bytes) -> None:
        with lock:
            if written[0] == count:
                raise Killed
            append(lines, entry)
            written[0] += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SealedLines, "append", watched)
        yield written


class Watching(ArithmeticExecutor):
    """Refuses to run again what the run's journal says is finished."""

    def run(self, request, folder, **options):
        assert not finished_already(folder), f"{folder} is finished"
        return super().run(request, folder, **options)


def execution() -> ArithmeticExecution:
    return ArithmeticExecution(lambda _: Watching(BIG))


def test_a_night_killed_at_any_line_ends_with_the_same_winners_and_repeats_no_finished_probe(tmp_path):
    sweep = asked(tmp_path, **SMALL)
    whole = new_night("nightly", tmp_path / "whole")
    with killed_after(10**9) as written:
        expected = run_night(sweep, whole, execution=execution()).record.ended
    assert written[0] > 25  # of the night and of two runs
    for count in range(written[0]):
        night = new_night("nightly", tmp_path / f"after-{count}")
        with killed_after(count), pytest.raises(Killed):
            run_night(sweep, night, execution=execution())
        again = asked_before(night, anything) if count else sweep
        record = run_night(again, night, execution=execution()).record
        assert record.closed, count
        found = {cell: (entry.state, entry.winner) for cell, entry in record.ended.items()}
        assert found == {cell: (entry.state, entry.winner) for cell, entry in expected.items()}, count
        for cell, entry in expected.items():
            assert len(read_record(night.run(cell).journal).history) == entry.probes


def test_a_probe_that_is_finished_would_be_seen_to_run_again(tmp_path):
    night = new_night("nightly", tmp_path / "runs")
    run_night(asked(tmp_path, **SMALL), night, execution=execution())
    for cell in read_night(night).ended:
        assert finished_already(night.run(cell).probe(1))
        assert not finished_already(night.run(cell).probe(99))


def test_kill_9_leaves_no_process_and_loses_nothing(tmp_path):
    """The controller is a process of its own, with probes under real supervisors, one of which waits to be killed."""
    mark = f"kills-{os.getpid()}"
    sweep = asked(tmp_path, **SMALL)
    night = new_night("nightly", tmp_path / "runs")
    script = (
        "import sys; from tests.fakes.sweeps import run_in_processes\n"
        "run_in_processes(sys.argv[1], sys.argv[2], sys.argv[3] == 'wait')\n"
    )

    def controller(wait: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", script, str(tmp_path / "sweep.yaml"), str(night.root), wait]
        return subprocess.Popen(command, cwd=ROOT, env={**os.environ, TRIAL: mark}, start_new_session=True)

    first = controller("wait")
    until = time.monotonic() + 120

    def launched() -> bool:  # a probe is in the journal before its processes are there
        begun = any(under_way(run) for run in runs_of(night, sweep))
        return begun and len(psutil.Process(first.pid).children(recursive=True)) >= 2

    while not launched():
        assert first.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    with pytest.raises(RunInUse), NightJournal(night):
        pass  # a second controller
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert remaining(mark) == []
    second = controller("go on")
    assert second.wait(240) == 0
    assert remaining(mark) == []
    record = read_night(night)
    assert record.closed
    assert {entry.state for entry in record.ended.values()} == {"proven"}


def runs_of(night: NightPaths, sweep) -> list[RunPaths]:
    return [night.run(cell.id) for cell in sweep.cells]


def under_way(run: RunPaths) -> bool:
    """Tell whether a probe of a run has been started that has no verdict."""
    return run.journal.exists() and bool(read_record(run.journal).pending)
