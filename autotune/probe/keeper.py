"""The tuner's handle on the keeper of a probe, the root of its processes; and how one is started cold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from autotune.options import LauncherName

if TYPE_CHECKING:
    from autotune.probe.supervisor import Orders

_SUPERVISOR = Path(__file__).with_name("supervisor.py")


class Keeper(Protocol):
    """A keeper that was started."""

    @property
    def launcher(self) -> LauncherName:
        """How it was started."""
        ...

    def terminate(self) -> None:
        """Ask it to end with all below it, and return at once."""
        ...

    def end(self, patience: float) -> bool:
        """Wait for its end, and kill it after `patience` seconds; return whether it is known to have ended well."""
        ...


Start = Callable[["Orders", Mapping[str, str], int, int], Keeper]
"""Starts a keeper with its orders, the environment, and the descriptors of standard output and error. Raises OSError,
or ProbeError; nothing was started then."""


def start_cold(orders: Orders, environment: Mapping[str, str], stdout: int, stderr: int) -> Keeper:
    """Start keeper and supervisor as a program, which starts the worker's command line."""
    return _Spawned(orders, environment, stdout, stderr)


class _Spawned:
    """A keeper that is a child of this process."""

    launcher: LauncherName = "cold"

    def __init__(self, orders: Orders, environment: Mapping[str, str], stdout: int, stderr: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SUPERVISOR), json.dumps(orders)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(orders["lifeline"], orders["report"], orders["result"]),
            start_new_session=True,
        )

    def terminate(self) -> None:
        self._process.terminate()

    def end(self, patience: float) -> bool:
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return self._process.returncode == 0
