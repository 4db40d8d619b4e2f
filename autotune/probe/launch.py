"""Launching one disposable probe: worker, supervisor, deadline, and whatever the worker says meanwhile."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import psutil
from pydantic import ValidationError

import autotune
from autotune.devices.allocator import preloaded
from autotune.errors import ProbeError
from autotune.interruption import shielded
from autotune.probe.exit import Exit, Report
from autotune.probe.folder import ProbeFolder, write_atomically
from autotune.probe.keeper import Start, start_cold
from autotune.probe.messages import Messages
from autotune.probe.protocol import ProbeRequest, Progress

if TYPE_CHECKING:
    from autotune.probe.supervisor import Orders

WORKER = (sys.executable, "-P", "-m", "autotune.worker")
"""Command line of the worker, before the request's path and the number of the result pipe. `-P` keeps the
current folder off its import path: a file torch.py there must not be what the worker imports."""

SETTLE = 10.0
"""Seconds that a worker gets to end after its answer; a teardown that hangs must not cost the deadline."""
GRACE = 15.0
"""Seconds beyond the deadline after which the supervisor itself is given up (its own patience is 8 s)."""
MARK = "AUTOTUNE_PROBE"
"""Variable in the environment of every process of a probe; its value is unique to the launch."""
KILLING = 5.0
"""Seconds that are spent on killing what a lost supervisor left."""
STDERR_TAIL = 8192
"""Bytes of standard error kept in the report."""

_CHUNK = 65536
_supervisors: set[_Supervisor] = set()
"""Those that are under way, of all threads."""
_waits: set[Callable[[], None]] = set()
"""What ends the waiting of launches that have no supervisor yet."""


class Launcher(Protocol):
    """Runs one probe to its end: `launch` anew, `warm.WarmLauncher` forked. Returned or raised, no process is left."""

    def __call__(
        self,
        request: ProbeRequest,
        folder: ProbeFolder,
        *,
        environment: Mapping[str, str],
        data_limit: int | None,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
        on_start: Callable[[], None] | None = None,
        cancel: int | None = None,
    ) -> Report:
        """Run a probe until it ends, `timeout` seconds pass or `cancel` is readable; return what became of it.

        `on_start` is called when those seconds begin.
        """
        ...


def launch(
    request: ProbeRequest,
    folder: ProbeFolder,
    *,
    environment: Mapping[str, str],
    data_limit: int | None,
    timeout: float,
    on_progress: Callable[[Progress], None] | None = None,
    on_start: Callable[[], None] | None = None,
    cancel: int | None = None,
    worker: Sequence[str] = WORKER,
    start: Start = start_cold,
    began: float | None = None,
    cold_because: str = "",
) -> Report:
    """Run `request` in a process tree of its own, and return what was seen of it.

    `environment` is added to this process's own. `data_limit` (bytes, RLIMIT_DATA) is enforced by the
    kernel on each process of the tree. `timeout` (seconds) is from the worker's start, at which `on_start` is
    called; at the latest 15 s after it this returns. Standard output and error go to files, each held below 64 MiB by
    dropping its older part. `cancel` is the read end of a pipe: when its other end is closed, the probe is stopped.
    `worker` is the worker's command line, and `start` starts the root of the tree. `began` is when the launch began
    (monotonic clock), if before this call, and `cold_because` why it is not warm; both are reported. When this returns
    or raises, KeyboardInterrupt included, no process of the tree is alive (other than those that the kernel cannot
    kill: `Exit.survivors`).

    Raises ProbeError when the probe cannot be started, or its files cannot be written.
    """
    try:
        folder.create()
        write_atomically(folder.request, request.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise ProbeError(f"the probe's folder cannot be written: {error}") from error
    messages = Messages(on_progress)
    began = time.monotonic() if began is None else began
    supervisor: _Supervisor | None = None
    try:
        with shielded():  # a process that was started is known, so that it can be ended
            supervisor = _Supervisor(folder, worker, environment, data_limit, timeout, start)
            _supervisors.add(supervisor)
        if on_start is not None:
            on_start()
        ending = supervisor.attend(messages, time.monotonic() + timeout, cancel)
    finally:
        if supervisor is not None:
            with shielded():
                supervisor.end()
                _supervisors.discard(supervisor)
    messages.close()
    report = Report(
        answer=messages.answer,
        progress=messages.progress,
        baseline=messages.baseline,
        violations=tuple(messages.violations),
        ending=ending,
        seconds=time.monotonic() - began,
        stderr_tail=_tail(folder.stderr),
        launcher=supervisor.keeper.launcher,
        cold_because=cold_because,
    )
    try:
        write_atomically(folder.result, report.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise ProbeError(f"the probe's result cannot be written: {error}") from error
    return report


def end_all() -> None:
    """Have every probe of this process end now, whichever thread waits for it; what it would have said is lost."""
    for supervisor in tuple(_supervisors):
        supervisor.keeper.terminate()
    for end in tuple(_waits):
        end()


@contextmanager
def ended_by_all(end: Callable[[], None]) -> Iterator[None]:
    """Have `end_all` call `end` while the body waits for what a probe needs before it is launched."""
    _waits.add(end)
    try:
        yield
    finally:
        _waits.discard(end)


class _Supervisor:
    """The tuner's end of one supervisor process: its lifeline, its report, and the worker's messages."""

    def __init__(
        self,
        folder: ProbeFolder,
        worker: Sequence[str],
        environment: Mapping[str, str],
        data_limit: int | None,
        timeout: float,
        start: Start,
    ) -> None:
        self.mark = uuid.uuid4().hex
        lifeline, self.lifeline = os.pipe()
        self.report, report = os.pipe()
        self.result, result = os.pipe()
        self._reported = False
        orders: Orders = {
            "argv": [*worker, str(folder.request)],
            "lifeline": lifeline,
            "report": report,
            "result": result,
            "data_limit": data_limit,
            "timeout": timeout,
        }
        try:
            with folder.stdout.open("ab") as stdout, folder.stderr.open("ab") as stderr:
                marked = {**worker_environment(environment), MARK: self.mark}
                self.keeper = start(orders, marked, stdout.fileno(), stderr.fileno())
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise ProbeError(f"the probe's supervisor cannot be started: {error}") from error
            raise
        finally:
            for descriptor in (lifeline, report, result):
                os.close(descriptor)

    def attend(self, messages: Messages, deadline: float, cancel: int | None = None) -> Exit | None:
        """Read both pipes until the supervisor is done; return its report, or None when it was lost."""
        said = bytearray()
        give_up = deadline + GRACE
        settled: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(self.result, selectors.EVENT_READ, messages.feed)
            selector.register(self.report, selectors.EVENT_READ, said.extend)
            if cancel is not None:
                selector.register(cancel, selectors.EVENT_READ, None)
            while self.report in selector.get_map():
                now = time.monotonic()
                if now >= give_up:
                    return None
                if messages.answer is not None and settled is None:
                    settled = now + SETTLE
                if settled is not None and now >= settled:
                    self.stop()
                next_look = give_up if settled is None or settled <= now else min(settled, give_up)
                for key, _ in selector.select(next_look - now):
                    if key.fd == cancel:
                        selector.unregister(key.fd)
                        self.stop()
                        continue
                    data = os.read(key.fd, _CHUNK)
                    if data:
                        key.data(data)
                    else:
                        selector.unregister(key.fd)
        # The supervisor reports when the tree is gone, so what the worker said is in the pipe by now. Its end of
        # file is not awaited: a process that the kernel cannot kill would hold it open.
        os.set_blocking(self.result, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.result, _CHUNK):
                messages.feed(data)
        try:
            ending = Exit.model_validate_json(bytes(said))
        except ValidationError:
            return None
        self._reported = True
        return ending

    def stop(self) -> None:
        """Tell the supervisor to end everything now."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1

    def end(self) -> None:
        """Make sure that supervisor and tree are gone, whatever happened; then close the pipes."""
        self.stop()
        if not self.keeper.end(GRACE) and not self._reported:
            kill_marked(self.mark)
        self._close()

    def _close(self) -> None:
        self.stop()
        os.close(self.report)
        os.close(self.result)


def kill_marked(mark: str) -> None:
    """Kill every process whose environment carries the launch's mark: the way out when a supervisor was lost.

    Nothing else identifies a tree whose root is gone: its orphans belong to init, in sessions of their own.
    """
    wanted = f"{MARK}={mark}".encode()
    until = time.monotonic() + KILLING
    while time.monotonic() < until:
        marked = [pid for pid in psutil.pids() if wanted in _environ(pid)]
        if not marked:
            return
        for pid in marked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, a zombie's, or another user's
        return []


def worker_environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return a worker's environment but for its mark: the worker imports the same autotune as this process."""
    package = str(Path(autotune.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH")
    return preloaded({
        # Libraries ask while they are imported whether there is a GPU. By CUDA's runtime the answer opens the driver,
        # and what has opened it cannot be forked; by NVML, which this has torch ask, it does not.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        **os.environ,
        # A worker that dies in native code leaves its Python stack on standard error.
        "PYTHONFAULTHANDLER": "1",
        **added,
        "PYTHONPATH": os.pathsep.join([package, inherited] if inherited else [package]),
    })  # fmt: skip


def _tail(path: Path) -> str:
    """Return the end of a log as text; empty when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - STDERR_TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
