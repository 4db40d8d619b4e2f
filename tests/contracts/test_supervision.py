"""Whatever happens to a worker, its supervisor, its keeper or the tuner: no process of a probe is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.outcome import Lost, Oom, Unsupported
from autotune.probe import launch as launching
from autotune.probe.exit import Report
from autotune.probe.folder import ProbeFolder
from autotune.probe.protocol import Progress
from autotune.units import MIB
from tests.contracts.launched import (
    REQUEST,
    SERVER,
    Run,
    keeper_and_supervisor,
    marked,
    verdict,
)


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


@pytest.mark.parametrize("which", [0, 1])
def test_a_supervisor_or_keeper_that_is_killed_takes_its_tree_along(
    run: Run, launcher: str, which: int
) -> None:
    def kill_supervisor(_: Progress) -> None:
        keeper_and_supervisor(launcher)[which].kill()

    report = run("hang_after_daemons", on_progress=kill_supervisor)
    assert report.ending is None
    outcome = verdict(report)
    assert isinstance(outcome, Lost)
    assert outcome.cause == "supervisor"


def test_a_supervisor_that_stands_still_does_not_hold_the_tuner(
    run: Run, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = 0.0

    def stand_still(_: Progress) -> None:
        nonlocal late
        keeper_and_supervisor(launcher)[1].suspend()
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
        "hang_after_daemons", on_progress=lambda _: keeper_and_supervisor(launcher)[1].children()[0].suspend()
    )
    assert report.ending is not None
    assert report.ending.halted
    outcome = verdict(report)
    assert isinstance(outcome, Lost)
    assert outcome.cause == "worker"


@pytest.mark.parametrize("which", [0, 1])
def test_a_supervisor_told_to_end_ends_its_tree(run: Run, launcher: str, which: int) -> None:
    def end_supervisor(_: Progress) -> None:
        keeper_and_supervisor(launcher)[which].terminate()

    report = run("hang_after_daemons", on_progress=end_supervisor)
    assert report.ending is not None
    assert report.ending.stopped
    assert report.ending.leftovers == 1
    assert isinstance(verdict(report), Lost)


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
def test_not_even_a_daemon_outlives_tuner_and_supervisor_killed_together(
    tuner: subprocess.Popen[bytes], launcher: str, which: int
) -> None:
    killed = keeper_and_supervisor(launcher, tuner.pid)[which]
    tuner.send_signal(signal.SIGSTOP)  # it gets no chance to clean up
    killed.kill()
    tuner.kill()
    assert remaining(0) == []


def test_a_worker_does_not_outlive_tuner_keeper_and_supervisor_killed_together(
    tuner: subprocess.Popen[bytes], launcher: str
) -> None:
    keeper, supervisor = keeper_and_supervisor(launcher, tuner.pid)
    worker = supervisor.children()[0].pid
    tuner.send_signal(signal.SIGSTOP)
    keeper.suspend()
    supervisor.kill()
    keeper.kill()
    tuner.kill()
    assert worker not in remaining(1)  # the daemon is out of reach: nobody is left who could know of it
