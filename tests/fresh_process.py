"""Run a file of tests in a process of its own: the stand-in for CUDA wants one that has run no backward pass yet."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_alone(file: Path, timeout: float = 900.0) -> None:
    """Run the tests of a file, whose name pytest does not collect; all have to pass."""
    # Without pytest's logging, which would keep torch's own trace of what it compiles.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:logging", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
