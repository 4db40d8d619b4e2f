"""The tuner's handle on one server of warm probes, and on the keepers that it forks."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.errors import ProbeError
from autotune.options import LauncherName
from autotune.probe.fork_server import MESSAGE_CAP, ForkOrder

if TYPE_CHECKING:
    from autotune.probe.supervisor import Orders

FORK_PATIENCE = 20.0
"""Seconds that a server gets to fork a keeper; it takes some hundredths. One that stands still is given up."""
_LAST_WORDS = 2000
"""Bytes of a server's standard error that are told of it."""


class ServerLost(ProbeError):
    """A server is gone, never came, or does not answer; nothing of the probe was started."""


class NotAwaited(ServerLost):
    """The launch was cancelled while the server was still importing; it goes on."""


class WarmServer:
    """A process that imports what workers need and then forks them; it does not outlive this one."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], mark: str, own: Sequence[str] = ()
    ) -> None:
        """Start it; `ready` waits for its imports. `command` is given the numbers of its socket and of its lifeline.

        `mark` is the name of the variable that marks the processes of a probe, and `own` are those of the variables
        that each probe has of its own, or has not; all others are the server's. Raises OSError.
        """
        self._mark = mark
        self._own = tuple(own)
        self.used = time.monotonic()
        """When it was last asked for, on the monotonic clock."""
        self.launches = 0
        """Launches that are under way with it; its owner counts."""
        self._lock = threading.Lock()
        self._facts: dict[str, object] | None = None
        self._says = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*command, str(control.fileno()), str(lifeline)],
                # The value of a forked process's mark is written over the server's, which is as long.
                env={**environment, mark: "0" * 32},
                stdin=subprocess.DEVNULL, stdout=self._says, stderr=self._says,
                pass_fds=(control.fileno(), lifeline), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self._close()
            raise
        finally:
            control.close()
            os.close(lifeline)

    def ready(self, timeout: float, cancel: int | None = None) -> dict[str, object]:
        """Wait for its imports, at most so many seconds or until `cancel` is readable; return what it says of itself.

        Raises ServerLost with its last words where it ended instead, or with its own reason not to serve.
        """
        with self._lock:
            if self._facts is None:
                self._facts = json.loads(self._heard(timeout, cancel)[0])
            assert self._facts is not None
            if reason := self._facts.get("refused"):
                raise ServerLost(str(reason))
            return self._facts

    @property
    def served(self) -> bool:
        """Whether its imports came to an end, and it forks."""
        return self._facts is not None and not self._facts.get("refused")

    def start(self, orders: Orders, environment: Mapping[str, str], stdout: int, stderr: int) -> _Forked:
        """Have it fork a keeper (a `keeper.Start`). Raises ServerLost."""
        order = ForkOrder(
            argv=orders["argv"], data_limit=orders["data_limit"], timeout=orders["timeout"],
            mark=(self._mark, environment[self._mark]),
            variables={name: environment.get(name) for name in self._own},
        )  # fmt: skip
        here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with self._lock:
                self._control.settimeout(FORK_PATIENCE)
                pipes = (orders["lifeline"], orders["report"], orders["result"])
                socket.send_fds(self._control, [json.dumps(order).encode()], [stdout, stderr, *pipes, here])
                data, descriptors = self._heard(FORK_PATIENCE)
        except OSError as error:
            raise self._lost(str(error)) from error
        finally:
            os.close(here)
        if not descriptors:
            raise ServerLost(f"the server of warm probes could not fork: {json.loads(data)['error']}")
        return _Forked(descriptors[0])

    def kill(self) -> None:
        """Kill it, so that who waits for it hears of its end."""
        self._process.kill()

    def end(self) -> None:
        """End it at once. Probes that it started go on."""
        self._process.kill()
        self._process.wait()
        with self._lock:  # who waits for its answer hears of its end, and reads its last words
            self._close()

    def _close(self) -> None:
        self._control.close()
        self._says.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _heard(self, timeout: float, cancel: int | None = None) -> tuple[bytes, list[int]]:
        """Return its next message with what came along."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if cancel is not None:
            poll.register(cancel, select.POLLIN)
        events = dict(poll.poll(1000 * max(0.0, timeout)))
        if self._control.fileno() not in events:
            if events:
                raise NotAwaited("the launch was cancelled while the server of warm probes was importing")
            raise ServerLost(f"the server of warm probes said nothing for {timeout:.0f} s")
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_CAP, 1)
        except OSError as error:
            raise self._lost(str(error)) from error
        if not data:
            raise self._lost("it ended")
        return data, descriptors

    def _lost(self, what: str) -> ServerLost:
        self._says.seek(0, os.SEEK_END)
        self._says.seek(max(0, self._says.tell() - _LAST_WORDS))
        words = self._says.read().decode("utf-8", "replace").strip()
        return ServerLost(f"the server of warm probes is gone ({what}){': ' if words else ''}{words}")


class _Forked:
    """A keeper that a server forked: no child of this process, known by a descriptor of the process (pidfd)."""

    launcher: LauncherName = "warm"

    def __init__(self, process: int) -> None:
        self._process = process

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def end(self, patience: float) -> bool:
        if not self._ended(patience):
            self._signal(signal.SIGKILL)
            self._ended(None)
        os.close(self._process)
        self._process = -1
        return False  # its exit code is the server's to read

    def _ended(self, patience: float | None) -> bool:
        poll = select.poll()
        poll.register(self._process, select.POLLIN)
        return bool(poll.poll(None if patience is None else 1000 * patience))

    def _signal(self, number: signal.Signals) -> None:
        if self._process >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, number)
