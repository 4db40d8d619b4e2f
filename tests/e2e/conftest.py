"""Real runs of the installed command on the CPU device, shared by the tests that look at them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.docs.readme import commands

AUTOTUNE = [str(Path(sys.executable).parent / "autotune")]
SHORT = ["--sample-time", "1s", "--proof-time", "2s", "--seq-len", "128"]
"""Short samples."""
QUICK = [*SHORT, "--speed-tolerance", "0.9"]
"""Short samples, and a speed check that other work on the machine cannot fail: speed is not what is tested."""


@dataclass(frozen=True)
class Ended:
    """A command that ran to its end."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        return json.loads(self.stdout)


def autotune(*arguments: str, cwd: Path) -> Ended:
    """Run the command as a user would, with the output going to files."""
    done = subprocess.run([*AUTOTUNE, *arguments], cwd=cwd, capture_output=True, text=True, timeout=280)
    return Ended(done.returncode, done.stdout, done.stderr)


def probes_alive(folder: Path) -> list[int]:
    """Return every process that still runs for a probe of a run under `folder`: its guard and its worker."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder.resolve()) in part for part in process.info["cmdline"] or [])
    ]


@pytest.fixture(scope="session")
def winner(tmp_path_factory) -> tuple[Path, Ended]:
    """Return the working folder and the output of the README's run without predictions.

    It meets real OOMs and ends with a winner.
    """
    return _readmes_run(tmp_path_factory.mktemp("winner"), "--no-predict")


@pytest.fixture(scope="session")
def foreseen(tmp_path_factory) -> tuple[Path, Ended]:
    """Return the same of the README's run as it stands there, with predictions."""
    return _readmes_run(tmp_path_factory.mktemp("foreseen"))


def _readmes_run(folder: Path, *more: str) -> tuple[Path, Ended]:
    shown = next(command for command in commands() if command[:2] == ["autotune", "run"])
    ended = autotune(*shown[1:], *more, "--json", cwd=folder)
    assert ended.code == 0, ended.stderr
    return folder, ended
