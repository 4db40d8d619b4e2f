"""The supervisor: a small process between tuner and worker that lets no process of a probe outlive its time.

Run as a script (`python -I -S supervisor.py ORDERS`), with the standard library alone, so that it starts in tens
of milliseconds; nothing of autotune is imported. ORDERS is a JSON object, see `Orders`. The supervisor adopts
every orphan below it (Linux "child subreaper"), so that a grandchild which starts a session of its own is
found too: as long as the supervisor has a child, something of the probe is alive; when it has none, nothing is.

It ends the whole tree when the worker ends, at the deadline, at SIGTERM, and when the other end of its
lifeline is closed, which is what happens when the tuner dies, however it dies. Then it writes one JSON line
on its report pipe (`exit.Exit`). Linux only.

It is two processes: a keeper, which the tuner starts (or a server forks: `fork_server`), and the supervisor itself
below it. The keeper only waits, and adopts orphans too. Each ends the whole tree when the other is killed, so that a
daemon which the worker left survives neither of them, nor one of them and the tuner killed at once. Only who kills all
three leaves such a daemon (the worker dies with its supervisor): then nobody is left who could know of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import TypedDict

TICK = 0.02
"""Seconds between looks at the worker's memory."""
RECENT = 0.25
"""Seconds before its end over which the worker's last memory is the largest sample."""
SELF_ENDING = 0.5
"""Seconds that helpers get to end by themselves after the worker (multiprocessing's tracker does); on a machine at work
0.1 was too little."""
KILL_PATIENCE = 8.0
"""Seconds to wait for killed processes; beyond, they hang in the kernel and are reported as survivors."""
LOG_CAP = 64 * 2**20
"""Bytes that stdout and stderr may each grow to; then the file starts anew, so that its end is kept."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)
_LOGS = (1, 2)  # the supervisor's own stdout and stderr are the worker's log files, opened for appending


class Orders(TypedDict):
    """What the tuner tells keeper and supervisor."""

    argv: list[str]
    """The worker's command line, but for its last argument, the number of the result pipe."""
    lifeline: int
    """Read end of a pipe on which the tuner never writes: its end of file is the order to stop."""
    report: int
    """Write end of the pipe for the supervisor's own report."""
    result: int
    """Write end of the worker's result pipe; the worker inherits it beside stdin, stdout and stderr."""
    data_limit: int | None
    """Bytes of private memory that the kernel grants to the worker, and to each of its children
    that does not lift it."""
    timeout: float
    """Seconds until the worker is killed."""


Become = Callable[[list[str]], object]
"""What the forked worker does with its whole command line, in place of which it never returns: by default `execute`."""


def execute(argv: list[str]) -> None:
    """Replace this process by the program of a command line; where there is none, say so."""
    try:
        os.execv(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]} could not be started: {error}\n".encode())


class SupervisedProcess:
    """The supervised process, and how much memory it was seen to hold."""

    def __init__(self, orders: Orders, become: Become, own: list[int]) -> None:
        self.started = self.alive = time.monotonic()
        """When it began, and when it was last seen with memory of its own. The kernel takes a process's memory before
        its sockets, so until then no other rank can have noticed its end."""
        self.pid = _start(orders, become, own)
        self.status: int | None = None
        self.halted = False
        """Whether something stopped it (SIGSTOP), so that its times mean nothing and its end may never come."""
        self.max_rss = 0
        self.data_peak = 0
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self) -> None:
        """Read what RLIMIT_DATA counts (VmData), and hold the logs below their cap."""
        now = time.monotonic()  # before the look: this process may stand still behind it
        data = _data_bytes(self.pid)
        if data:
            self.alive = now
            self.data_peak = max(self.data_peak, data)
            self._samples.append((now, data))
            while self._samples[0][0] < now - RECENT:
                self._samples.popleft()
        for log in _LOGS:
            if os.fstat(log).st_size > LOG_CAP:
                os.ftruncate(log, 0)  # the worker appends, so it goes on at the new end
                os.write(log, b"[autotune: the log passed 64 MiB; what came before is dropped]\n")

    def data_recent(self) -> int:
        """Return the most memory seen in the last moments of the worker, in bytes; 0 if never seen."""
        return max((data for _, data in self._samples), default=0)


def keep(orders: Orders, become: Become = execute) -> int:
    """Start the supervisor and wait for its end; if that was violent, end all that it leaves. Return the exit code."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    kept, held = os.pipe()  # the supervisor sees this process die by the end of file
    supervisor = os.fork()
    if not supervisor:
        try:
            os.close(held)
            os.setsid()  # who kills one of the two by its group must not hit both
            watch(orders, kept, become)
        except BaseException:  # noqa: BLE001 - a fork must never return into the keeper's code
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(supervisor, number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for descriptor in (kept, orders["lifeline"], orders["report"], orders["result"]):
        os.close(descriptor)  # or the tuner would wait for these copies to close
    _, status = os.waitpid(supervisor, 0)
    if status == 0:
        return 0
    began = time.monotonic()
    while _reap() and time.monotonic() - began < KILL_PATIENCE:
        _kill(_descendants())
        time.sleep(0.002)
    return 1


def watch(orders: Orders, kept: int, become: Become = execute) -> None:
    """Start the worker, watch it to its end, end everything below, report; without a report if the keeper is gone."""
    for own in (orders["lifeline"], orders["report"], kept):
        os.set_inheritable(own, False)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake, wakes = _wake_on_signals()
    stop_signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop_signals.append(number))
    signal.signal(signal.SIGHUP, lambda number, _: stop_signals.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the tuner's to answer
    kills_before = _oom_kills()

    worker = SupervisedProcess(orders, become, [orders["lifeline"], orders["report"], kept, wake, wakes])
    os.close(orders["result"])  # or the tuner would wait for the supervisor's copy to close
    deadline = worker.started + orders["timeout"]
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(orders["lifeline"], select.POLLIN | select.POLLHUP)
    poll.register(kept, select.POLLIN | select.POLLHUP)
    timed_out = stopped = alone = False
    while _collect(worker) and worker.status is None:
        worker.sample()
        left = deadline - time.monotonic()
        timed_out = left <= 0
        events = dict(poll.poll(1000 * max(0.0, min(TICK, left))))
        stopped = orders["lifeline"] in events or bool(stop_signals)
        alone = kept in events
        if timed_out or stopped or alone or worker.halted:
            break
        if wake in events:
            os.read(wake, 4096)

    leftovers, survivors = _end_tree(worker)
    if alone:
        os._exit(1)  # whoever killed the keeper may have killed anything else of this probe
    seconds = time.monotonic() - worker.started
    kills_after = _oom_kills()
    status = worker.status
    report = {
        "exit_code": os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
        "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
        "timed_out": timed_out and not stopped and not worker.halted,
        "stopped": stopped,
        "halted": worker.halted and not stopped,
        "since": deadline if timed_out and not stopped and not worker.halted else worker.alive,
        "seconds": seconds,
        "leftovers": leftovers,
        "survivors": survivors,
        "max_rss": worker.max_rss,
        "data_peak": worker.data_peak,
        "data_recent": worker.data_recent(),
        "oom_kills": None if kills_before is None or kills_after is None else kills_after - kills_before,
    }
    with contextlib.suppress(BrokenPipeError):  # the tuner is gone: nobody is left to tell
        os.write(orders["report"], json.dumps(report).encode() + b"\n")


def _start(orders: Orders, become: Become, own: list[int]) -> int:
    """Fork the worker with its limits, and return its process id. `own` are descriptors that it must not have."""
    supervisor = os.getpid()
    os.set_inheritable(orders["result"], True)
    pid = os.fork()
    if pid:
        return pid
    try:
        # The order matters: from here on the worker cannot outlive the supervisor, even one that is already gone.
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(127)
        os.setsid()  # a worker that signals its own process group must not hit the supervisor
        signal.set_wakeup_fd(-1)
        for descriptor in own:  # a worker that becomes no other program would keep them
            os.close(descriptor)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        _prefer_for_oom_killer()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if orders["data_limit"] is not None:
            # The soft limit alone: the processes that load a dataset's batches are the host's, and lift it.
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (orders["data_limit"], hard))
        become([*orders["argv"], str(orders["result"])])
    except BaseException:  # noqa: BLE001 - a fork must never return into the supervisor's code
        traceback.print_exc()
    finally:
        os._exit(127)


def _collect(worker: SupervisedProcess) -> bool:
    """Reap as `_reap`, and note how the worker ended."""

    def note(pid: int, status: int, usage: resource.struct_rusage) -> None:
        if pid != worker.pid:
            return
        if os.WIFSTOPPED(status):
            worker.halted = True
            return
        worker.status = status
        worker.max_rss = usage.ru_maxrss * 1024

    return _reap(note)


def _reap(note: Callable[[int, int, resource.struct_rusage], None] = lambda *_: None) -> bool:
    """Reap every process that has ended; return whether any child, alive or not, is left.

    `note` is told of each, and of those that were stopped.
    """
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        note(pid, status, usage)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _end_tree(worker: SupervisedProcess) -> tuple[int, list[int]]:
    """Kill and reap everything below the supervisor; return how many were left over, and who cannot be killed.

    The end is reached when the kernel knows no child of the supervisor any more: a look through /proc could miss a
    process that is just being born, but that one is somebody's child, and at last the supervisor's.
    """
    began = time.monotonic()
    leftovers: set[int] = set()
    while _collect(worker):
        waited = time.monotonic() - began
        if waited > KILL_PATIENCE:
            return len(leftovers), _descendants()
        if worker.status is None or waited > SELF_ENDING:
            found = _descendants()
            leftovers |= {pid for pid in found if pid != worker.pid}
            _kill(found)
        time.sleep(0.002)
    return len(leftovers), []


def _descendants() -> list[int]:
    """Return the living processes below this one, parents first."""
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                # The name in parentheses may hold spaces and parentheses of its own.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(parent), []).append(int(entry))
        if state in (b"Z", b"X"):
            zombies.add(int(entry))
    found = list(children.get(os.getpid(), []))
    for pid in found:
        found.extend(children.get(pid, []))
    return [pid for pid in found if pid not in zombies]


def _data_bytes(pid: int) -> int:
    """Return what RLIMIT_DATA counts of a process, in bytes; 0 once its memory is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmData:"):
                    return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def _oom_kills() -> int | None:
    """Return how often the kernel killed a process of this cgroup for memory, or None where it does not say.

    cgroup v2 counts in memory.events, v1 in memory.oom_control; a process in the root group, which has
    neither, falls back to the machine's count in /proc/vmstat.
    """
    for path in [*_memory_events(), "/proc/vmstat"]:
        try:
            with open(path, encoding="ascii") as file:
                for line in file:
                    name, _, value = line.partition(" ")
                    if name == "oom_kill":
                        return int(value)
        except OSError:
            continue
    return None


def _memory_events() -> list[str]:
    """Return where this process's cgroup may count its kills.

    In a container the path that the kernel names is often not visible, and the group itself is mounted at
    the root of the controller.
    """
    found = []
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            number, controllers, path = line.rstrip("\n").split(":", 2)
            if "memory" in controllers.split(","):
                base, name = "/sys/fs/cgroup/memory", "memory.oom_control"
            elif number == "0":
                base, name = "/sys/fs/cgroup", "memory.events"
            else:
                continue
            found += [f"{base}{path}/{name}", f"{base}/{name}"]
    return found


def _prefer_for_oom_killer() -> None:
    """If the machine itself runs out of memory, the kernel shall take the probe, not the tuner."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass


def _wake_on_signals() -> tuple[int, int]:
    """Return a pipe whose read end becomes readable when a child ends or a signal arrives."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read, write


if __name__ == "__main__":
    sys.exit(keep(json.loads(sys.argv[1])))
