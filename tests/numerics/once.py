"""What several tests look at, and takes half a minute to make: made once, though tests run in several processes."""

import fcntl
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def once(factory, name: str, command: Callable[[Path], list[str]]) -> Path:
    """Return the file that a command writes, which is run by the first process that asks, while others wait for it."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # which all workers of a run share
    file = folder / name
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            partial = folder / f"{name}.partial"
            done = subprocess.run(command(partial), cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-16000:]
            partial.rename(file)
    return file
