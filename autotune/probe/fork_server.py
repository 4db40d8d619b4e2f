"""The server's side of warm probes: a process that has imported what workers import, and forks one for each probe.

Runs inside a program that has done its imports and nothing else (`python -m autotune.worker.warm`), with the standard
library alone. For each order it forks a keeper, which is the root of a probe as the one that the tuner starts cold is:
keeper, supervisor and worker are the same code (`supervisor.keep`), but for the worker's last step, which is a function
here and a new program there. So deadline, limits, orphans and the ends of tuner, keeper and supervisor are kept alike.

A server has one thread, for what other threads hold at a fork nobody lets go of in the child; who calls `serve` sees
to that. It dies with its tuner: the kernel kills it at the end of file of its lifeline, also where it stands still.
Probes under way go on, for their lifelines are others. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn, TypedDict

from autotune.probe.supervisor import Orders, keep

MESSAGE_CAP = 2**17
"""Bytes of the longest order."""

_F_SETSIG = 10  # linux/fcntl.h


class ForkOrder(TypedDict):
    """What the tuner asks a server for, beside six descriptors.

    They are standard output and error, the pipes of `Orders` (lifeline, report, result), and the working folder.
    """

    argv: list[str]
    data_limit: int | None
    timeout: float
    """As in `Orders`."""
    mark: tuple[str, str]
    """The variable that marks all processes of the probe, and its value, as long as the one that the server has."""
    variables: dict[str, str | None]
    """Further variables in which the probe may differ from its server; None for one that is not there."""


DESCRIPTORS = 6
"""Descriptors that come with an order."""


def die_with_the_tuner(lifeline: int) -> None:
    """Have the kernel kill this process when the other end of the pipe is closed, whatever it is doing then."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if _ended(lifeline):  # before the kernel was told
        os._exit(0)


def serve(
    control: socket.socket, lifeline: int, facts: dict[str, object], work: Callable[[list[str]], object]
) -> None:
    """Say `facts`, then fork a probe for each order, until the tuner is gone. `work` is what a worker does.

    It gets the whole command line of the cold worker, and its return or exception ends the process as that of a
    program would.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the tuner's to answer
    # Keepers are nobody's to wait for: the tuner sees their ends.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.send(json.dumps(facts).encode())
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_CAP, DESCRIPTORS)
        if not data:
            return
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            keeper = os.fork()
            if not keeper:
                control.close()
                os.close(lifeline)
                _become_keeper(json.loads(data), descriptors, work)
            seen = os.pidfd_open(keeper)
        except OSError as error:  # no memory or process left for it, or it is gone already
            control.send(json.dumps({"error": str(error)}).encode())
        else:
            socket.send_fds(control, [b"{}"], [seen])
            os.close(seen)
        for descriptor in descriptors:
            os.close(descriptor)


def _become_keeper(order: ForkOrder, descriptors: list[int], work: Callable[[list[str]], object]) -> NoReturn:
    """Go on as the keeper of a probe, in a session of its own. Does not return."""
    code = 1
    try:
        stdout, stderr, lifeline, report, result, folder = descriptors
        os.setsid()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.fchdir(folder)
        for descriptor in (stdout, stderr, folder):
            os.close(descriptor)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        name, mark = order["mark"]
        write_initial(name, mark)
        os.environ[name] = mark
        for name, value in order["variables"].items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        orders = Orders(
            argv=order["argv"], lifeline=lifeline, report=report, result=result,
            data_limit=order["data_limit"], timeout=order["timeout"],
        )  # fmt: skip
        code = keep(orders, lambda argv: _work(work, argv))
    except BaseException:  # noqa: BLE001 - a fork must never return into the server's code
        traceback.print_exc()
    finally:
        os._exit(code)


def _work(work: Callable[[list[str]], object], argv: list[str]) -> NoReturn:
    """Do a worker's work and end as a program ends: by its exit code, 1 after an exception. Does not return."""
    code: object = 0
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # these three are Python's own at its start
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        work(argv)
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - a fork must never return into the supervisor's code
        traceback.print_exc()
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # the work may have replaced it
                stream.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def write_initial(name: str, value: str) -> None:
    """Write a variable where the kernel shows this process's environment (`/proc/PID/environ`), in place.

    That is the memory in which the program found its environment when it started; what is set later is elsewhere, and
    nobody outside sees it. The value must be as long as the one that was there.
    """
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])  # env_start and env_end of proc_pid_stat(5)
    block = b"\0" + ctypes.string_at(start, end - start)
    at = block.index(f"\0{name}=".encode()) + len(name) + 1
    old = block[at + 1 :].partition(b"\0")[0]
    assert len(old) == len(value.encode()), (name, old)
    ctypes.memmove(start + at, value.encode(), len(value.encode()))


def _ended(pipe: int) -> bool:
    """Return whether the other end of a pipe on which nothing is written was closed."""
    os.set_blocking(pipe, False)
    try:
        return os.read(pipe, 1) == b""
    except BlockingIOError:
        return False
