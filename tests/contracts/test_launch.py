"""Real children that misbehave: each gets its own verdict, and leaves no process behind, launched cold and warm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from autotune.candidate import Candidate
from autotune.errors import ProbeError
from autotune.outcome import Crash, Lost, Oom, Timeout, Unsupported
from autotune.probe import launch as launching
from autotune.probe.classify import classify
from autotune.probe.exit import Report
from autotune.probe.folder import ProbeFolder
from autotune.probe.launch import MARK, launch
from autotune.probe.protocol import ProbeRequest, Progress, Result
from autotune.probe.warm import WarmLauncher
from autotune.specs import ModelSpec
from autotune.units import MIB

MISBEHAVE = Path(__file__).parents[1] / "data" / "misbehave.py"
REQUEST = ProbeRequest(
    kind="train", model=ModelSpec(name="tiny", source="preset"), candidate=Candidate(), seq_len=8,
    accumulation_steps=1, device="cpu", budget=0, seed=0, sample_seconds=1, sample_steps=1, folder="",
)  # fmt: skip

COLD = (sys.executable, "-I", "-S", str(MISBEHAVE))
SERVER = (sys.executable, "-I", "-S", str(MISBEHAVE.with_name("serve.py")), str(MISBEHAVE))

Run = Callable[..., Report]


def marked() -> list[int]:
    """Return the processes of any probe that this test launched."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.environ["TESTED"] == process.environ().get("TESTED") and MARK in process.environ():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture(params=["cold", "warm"])
def launcher(request: pytest.FixtureRequest) -> str:
    """How workers are launched."""
    return str(request.param)


@contextmanager
def launching_misbehaviour(launcher: str) -> Iterator[Callable[..., Report]]:
    """Give what launches workers with a behaviour, cold or forked from a server of it."""
    with ExitStack() as stack:

        def launch_one(behaviour: str, folder: ProbeFolder, **options: Any) -> Report:
            worker = options.pop("worker", (*COLD, behaviour))
            if launcher == "cold":
                return launch(REQUEST, folder, worker=worker, **options)
            warm = (
                stack.enter_context(WarmLauncher(SERVER, worker))
                if behaviour not in made
                else made[behaviour]
            )
            made[behaviour] = warm
            report = warm(REQUEST, folder, **options)
            assert report.launcher == "warm", report.cold_because
            return report

        made: dict[str, WarmLauncher] = {}
        yield launch_one


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str) -> Iterator[Run]:
    """Launch a worker with a behaviour; afterwards no process of the test may be alive."""
    monkeypatch.setenv("TESTED", str(tmp_path))

    def launch_one(
        behaviour: str, *, timeout: float = 60, data_limit: int | None = None, **more: object
    ) -> Report:
        return launches(
            behaviour, ProbeFolder(tmp_path / "probe"), environment={"TOLD": "yes"}, data_limit=data_limit,
            timeout=timeout, **more,
        )  # fmt: skip

    before = len(os.listdir("/proc/self/fd"))
    with launching_misbehaviour(launcher) as launches:
        yield launch_one
    assert marked() == []
    assert len(os.listdir("/proc/self/fd")) == before


def verdict(report: Report, data_limit: int | None = None) -> object:
    return classify(REQUEST, report, kind="cpu", data_limit=data_limit)


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
    report = run(behaviour, timeout=0.7)
    outcome = verdict(report)
    assert isinstance(outcome, Timeout)
    assert outcome.phase == "backward"
    assert outcome.seconds >= 0.7


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


def test_a_teardown_that_hangs_does_not_cost_the_deadline(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "SETTLE", 0.3)
    report = run("answer_then_hang", timeout=200)
    assert verdict(report) == Unsupported(reason="as told")
    assert report.ending is not None
    assert report.ending.stopped
    assert report.seconds < 100


@pytest.mark.parametrize(("behaviour", "count"), [("leave_child", 1), ("leave_daemons", 2), ("breed", 12)])
def test_what_a_worker_leaves_behind_is_killed_and_counted(run: Run, behaviour: str, count: int) -> None:
    report = run(behaviour)
    assert report.ending is not None
    assert report.ending.leftovers == count
    assert report.ending.survivors == ()


def test_a_helper_that_ends_by_itself_is_no_leftover(run: Run) -> None:
    report = run("helper_that_ends")
    assert report.ending is not None
    assert report.ending.leftovers == 0


def test_an_interrupt_ends_the_tree_and_goes_on(run: Run) -> None:
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("hang_deaf", on_progress=interrupt)


def keeper_and_guard(launcher: str, tuner: int | None = None) -> tuple[psutil.Process, psutil.Process]:
    """Return the two processes between a tuner (this one), or its server, and the worker of its probe."""
    above = psutil.Process(tuner)
    keeper = (above.children()[0] if launcher == "warm" else above).children()[0]
    return keeper, keeper.children()[0]


@pytest.mark.parametrize("which", [0, 1])
def test_a_guard_or_keeper_that_is_killed_takes_its_tree_along(run: Run, launcher: str, which: int) -> None:
    def kill_guard(_: Progress) -> None:
        keeper_and_guard(launcher)[which].kill()

    report = run("hang_after_daemons", on_progress=kill_guard)
    assert report.ending is None
    outcome = verdict(report)
    assert isinstance(outcome, Lost)
    assert outcome.cause == "supervisor"


def test_a_guard_that_stands_still_does_not_hold_the_tuner(
    run: Run, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = 0.0

    def stand_still(_: Progress) -> None:
        nonlocal late
        keeper_and_guard(launcher)[1].suspend()
        late = 1000.0

    # The deadline passes when the supervisor stands still, on a machine of any speed.
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late, sleep=time.sleep)
    monkeypatch.setattr(launching, "time", clock)
    monkeypatch.setattr(launching, "GRACE", 0.3)
    report = run("hang_after_daemons", on_progress=stand_still)
    assert report.ending is None
    assert report.progress is not None


def test_a_worker_that_something_stops_is_lost_at_once_and_no_timeout(run: Run, launcher: str) -> None:
    report = run(
        "hang_after_daemons", on_progress=lambda _: keeper_and_guard(launcher)[1].children()[0].suspend()
    )
    assert report.ending is not None
    assert report.ending.halted
    outcome = verdict(report)
    assert isinstance(outcome, Lost)
    assert outcome.cause == "worker"


@pytest.mark.parametrize("which", [0, 1])
def test_a_guard_told_to_end_ends_its_tree(run: Run, launcher: str, which: int) -> None:
    def end_guard(_: Progress) -> None:
        keeper_and_guard(launcher)[which].terminate()

    report = run("hang_after_daemons", on_progress=end_guard)
    assert report.ending is not None
    assert report.ending.stopped
    assert report.ending.leftovers == 1
    assert isinstance(verdict(report), Lost)


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


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup with 300 MiB below this process's own, where this machine lets us make one."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            base, limit = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        elif not controllers:
            base, limit = Path("/sys/fs/cgroup"), "memory.max"
        else:
            continue
        group = base / path.lstrip("/") / f"autotune-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(300 * MIB))
        except OSError:
            group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("no memory cgroup can be made here")


def test_a_kill_by_the_kernel_for_memory_is_out_of_memory(
    tmp_path: Path, small_cgroup: Path, launcher: str
) -> None:
    with tuner_process(tmp_path, launcher, "over_budget", preexec_fn=lambda: enter(small_cgroup)):
        pass
    report = Report.model_validate_json(ProbeFolder(tmp_path / "probe").result.read_text())
    assert report.ending is not None
    assert report.ending.oom_kills == 1
    assert isinstance(verdict(report), Oom)


def enter(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


def tuner_process(tmp_path: Path, launcher: str, behaviour: str, **more: Any) -> subprocess.Popen[bytes]:
    """Start a tuner in a process of its own, which prints a line at each message of its worker."""
    request = tmp_path / "request.json"
    request.write_text(REQUEST.model_dump_json())
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from autotune.probe.folder import ProbeFolder
        from autotune.probe.launch import launch
        from autotune.probe.protocol import ProbeRequest
        from autotune.probe.warm import WarmLauncher
        request, folder, launcher, serve, misbehave, behaviour = sys.argv[1:]
        python = (sys.executable, "-I", "-S")
        options = dict(
            environment={}, data_limit=None, timeout=300, on_progress=lambda _: print("up", flush=True),
        )
        request = ProbeRequest.model_validate_json(Path(request).read_text())
        if launcher == "cold":
            launch(request, ProbeFolder(Path(folder)), worker=(*python, misbehave, behaviour), **options)
        else:
            warm = WarmLauncher((*python, serve, misbehave), (*python, misbehave, behaviour))
            warm(request, ProbeFolder(Path(folder)), **options)
    """)
    arguments = (str(request), str(tmp_path / "probe"), launcher, *SERVER[3:], behaviour)
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, **more,
    )  # fmt: skip


@pytest.fixture
def tuner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A tuner in a process of its own, whose probe hangs and has left a daemon behind."""
    monkeypatch.setenv("TESTED", str(tmp_path))
    with tuner_process(tmp_path, launcher, "hang_after_daemons") as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            # Keeper, supervisor, worker and daemon, which has no environment for a moment while it becomes `sleep`;
            # and the server.
            count = 5 if launcher == "warm" else 4
            assert len(remaining(count, least=count)) == count
            yield process
        finally:
            process.kill()  # else this waits for it, whatever failed
    for pid in marked():
        os.kill(pid, signal.SIGKILL)


def remaining(count: int, least: int = 0) -> list[int]:
    """Wait until at most `count` processes of the probe are left, and not fewer than `least`; return them."""
    until = time.monotonic() + 30
    while not least <= len(found := marked()) <= count and time.monotonic() < until:
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_a_tuner_that_is_killed(
    tuner: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    tuner.send_signal(number)
    assert remaining(0) == []


@pytest.mark.parametrize("which", [0, 1])
def test_not_even_a_daemon_outlives_tuner_and_guard_killed_together(
    tuner: subprocess.Popen[bytes], launcher: str, which: int
) -> None:
    killed = keeper_and_guard(launcher, tuner.pid)[which]
    tuner.send_signal(signal.SIGSTOP)  # it gets no chance to clean up
    killed.kill()
    tuner.kill()
    assert remaining(0) == []


def test_a_worker_does_not_outlive_tuner_keeper_and_guard_killed_together(
    tuner: subprocess.Popen[bytes], launcher: str
) -> None:
    keeper, supervisor = keeper_and_guard(launcher, tuner.pid)
    worker = supervisor.children()[0].pid
    tuner.send_signal(signal.SIGSTOP)
    keeper.suspend()
    supervisor.kill()
    keeper.kill()
    tuner.kill()
    assert worker not in remaining(1)  # the daemon is out of reach: nobody is left who could know of it
