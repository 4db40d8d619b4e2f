"""Real children that misbehave: each gets its own verdict, launched cold and warm."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from autotune.errors import ProbeError
from autotune.outcome import Crash, Lost, Oom, Timeout, Unsupported
from autotune.probe import launch as launching
from autotune.probe.exit import Report
from autotune.probe.folder import ProbeFolder
from autotune.probe.launch import launch
from autotune.probe.protocol import ProbeRequest, Progress, Result
from autotune.units import MIB
from tests.contracts.launched import (
    REQUEST,
    Run,
    launching_misbehaviour,
    verdict,
)


def test_a_worker_is_given_what_was_promised(run: Run) -> None:
    report = run("describe", data_limit=512 * MIB)
    assert isinstance(report.answer, Result)
    facts = json.loads(report.answer.outcome.reason)  # type: ignore[union-attr]
    assert facts["limit"][0] == 512 * MIB
    assert facts["core"] == [0, 0]
    assert facts["leader"]
    assert facts["stdin"] == "/dev/null"
    assert set(facts["descriptors"]) <= {0, 1, 2, 3, facts["result_fd"]}
    assert facts["told"] == "yes"
    assert facts["gpus"] == "GPU-7"
    assert facts["path"].split(os.pathsep)[0] == str(Path(launching.__file__).parents[2])
    assert facts["request"] == "train"
    assert facts["signals"] == {"SIGTERM": "0", "SIGHUP": "0"}
    assert report.ending is not None
    assert (report.ending.exit_code, report.ending.signal, report.ending.leftovers) == (0, None, 0)


def test_request_and_result_are_whole_documents(run: Run, tmp_path: Path) -> None:
    report = run("pieces")
    folder = ProbeFolder(tmp_path / "probe")
    assert ProbeRequest.model_validate_json(folder.request.read_text()) == REQUEST
    assert Report.model_validate_json(folder.result.read_text()) == report
    assert sorted(path.name for path in folder.root.iterdir()) == [
        "request.json", "result.json", "scratch", "stderr", "stdout",
    ]  # fmt: skip


def test_messages_may_come_in_pieces(run: Run) -> None:
    heard: list[Progress] = []
    report = run("pieces", on_progress=heard.append)
    assert [message.phase for message in heard] == ["build"]
    assert report.baseline == 123
    assert report.violations == ()
    assert verdict(report) == Unsupported(reason="as told")


@pytest.mark.parametrize("behaviour", ["hang", "hang_deaf"])
def test_a_worker_that_hangs_is_killed_at_its_deadline(run: Run, behaviour: str) -> None:
    report = run(behaviour, timeout=3.0)  # long enough for a busy machine to come to the backward pass
    outcome = verdict(report)
    assert isinstance(outcome, Timeout)
    assert outcome.phase == "backward"
    assert outcome.seconds >= 3.0


def test_a_segfault_is_a_crash_by_that_signal(run: Run) -> None:
    outcome = verdict(run("segfault"))
    assert isinstance(outcome, Crash)
    assert (outcome.reason, outcome.phase) == ("signal", "start")
    assert "SIGSEGV" in outcome.message


def test_a_kill_from_outside_is_not_taken_for_memory(run: Run) -> None:
    outcome = verdict(run("killed"))
    assert isinstance(outcome, Lost)
    assert outcome.cause == "worker"
    assert "SIGKILL" in outcome.message


def test_output_of_any_amount_does_not_disturb(run: Run, tmp_path: Path) -> None:
    report = run("loud")
    assert verdict(report) == Unsupported(reason="as told")
    assert report.violations == ()
    assert (tmp_path / "probe" / "stdout").stat().st_size > 10 * MIB
    assert report.stderr_tail.endswith("last words\n")
    assert len(report.stderr_tail) <= launching.STDERR_TAIL


def test_garbage_on_the_result_pipe_breaks_the_protocol(run: Run) -> None:
    report = run("garbage")
    outcome = verdict(report)
    assert isinstance(outcome, Crash)
    assert outcome.reason == "protocol"
    assert len(report.violations) == 4
    assert "longer than" in report.violations[2]
    assert "cut off" in report.violations[3]


def test_an_answer_counts_in_spite_of_garbage_before_it(run: Run) -> None:
    report = run("garbage_then_answer")
    assert verdict(report) == Unsupported(reason="as told")
    assert len(report.violations) == 1


def test_the_first_answer_stands(run: Run) -> None:
    report = run("two_answers")
    assert verdict(report) == Unsupported(reason="as told")
    assert "after the answer" in report.violations[0]


def test_the_kernel_refuses_memory_beyond_the_limit(run: Run) -> None:
    report = run("over_budget", data_limit=300 * MIB)
    taken = int(report.answer.outcome.reason)  # type: ignore[union-attr]
    assert 250 < taken <= 300
    assert report.ending is not None
    assert report.ending.data_peak <= 300 * MIB


def test_a_native_crash_at_the_limit_is_out_of_memory_and_one_far_from_it_is_not(run: Run) -> None:
    limit = 400 * MIB
    report = run("die_at_limit", data_limit=limit)
    assert isinstance(verdict(report, limit), Oom)
    assert isinstance(verdict(report, 2 * limit), Crash)


@pytest.mark.parametrize(("behaviour", "code"), [("exit_early", 0), ("exit_three", 3)])
def test_an_end_without_a_result_is_a_crash(run: Run, behaviour: str, code: int) -> None:
    outcome = verdict(run(behaviour))
    assert isinstance(outcome, Crash)
    assert outcome.reason == "exit"
    assert f"exit code {code}" in outcome.message


@pytest.mark.parametrize("launcher", ["cold"], indirect=True)
def test_a_worker_that_cannot_start_is_a_crash_that_says_why(run: Run) -> None:
    outcome = verdict(run("exit_early", worker=("/nowhere/python",)))
    assert isinstance(outcome, Crash)
    assert "exit code 127" in outcome.message
    assert "No such file" in outcome.traceback


@pytest.mark.parametrize("behaviour", ["answer_then_exit_three", "answer_then_segfault", "kill_own_group"])
def test_what_follows_a_delivered_verdict_does_not_change_it(run: Run, behaviour: str) -> None:
    assert verdict(run(behaviour)) == Unsupported(reason="as told")


@pytest.mark.usefixtures("run")
def test_probes_can_run_side_by_side(tmp_path: Path, launcher: str) -> None:
    reports: dict[str, Report] = {}

    def one(behaviour: str, timeout: float) -> None:
        reports[behaviour] = launches(
            behaviour, ProbeFolder(tmp_path / behaviour), environment={}, data_limit=None, timeout=timeout
        )

    with launching_misbehaviour(launcher) as launches:
        pairs = (("hang", 1.5), ("leave_daemons", 60.0))
        threads = [threading.Thread(target=one, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert isinstance(verdict(reports["hang"]), Timeout)
    assert verdict(reports["leave_daemons"]) == Unsupported(reason="as told")


def test_a_log_is_held_below_its_cap_and_keeps_its_end(run: Run, tmp_path: Path) -> None:
    report = run("flood")
    assert verdict(report) == Unsupported(reason="as told")
    log = tmp_path / "probe" / "stdout"
    assert log.stat().st_size < 100 * MIB
    text = log.read_bytes()
    assert b"what came before is dropped" in text
    assert text.endswith(b"last words\n")


def test_a_folder_that_cannot_be_written_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ProbeError) as caught:
        launch(REQUEST, ProbeFolder(tmp_path / "file"), environment={}, data_limit=None, timeout=1)
    assert isinstance(caught.value.__cause__, FileExistsError | NotADirectoryError)
