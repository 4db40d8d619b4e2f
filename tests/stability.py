"""Repeat the tests that race with clocks and processes, beside a process that is always busy.

    python -m tests.stability [--times 50] [--busy 1] [TEST ...]

The tests are those of supervisors, ranks and timeouts, or the given ones. Prints how many of the repetitions passed,
with the output of those that did not, and exits with 1 if any did not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/contracts/test_launch.py", "tests/contracts/test_supervision.py", "tests/contracts/test_ranks.py",
    "tests/contracts/test_cold_ranks.py", "tests/executors/test_group.py", "tests/probe/test_ranks_joined.py",
)  # fmt: skip


def spin() -> None:
    """Take all of a core that others leave."""
    while True:
        pass


def main() -> None:
    options = _options()
    busy = [multiprocessing.Process(target=spin, daemon=True) for _ in range(options.busy)]
    for process in busy:
        process.start()
    passed, began = 0, time.monotonic()
    try:
        for number in range(1, options.times + 1):
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options.tests]
            done = subprocess.run(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            passed += done.returncode == 0
            if done.returncode != 0:
                print(done.stdout)
            print(f"{passed} of {number} passed, {time.monotonic() - began:.0f} s", flush=True)
    finally:
        for process in busy:
            process.terminate()
    sys.exit(0 if passed == options.times else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tests", nargs="*", default=TESTS)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--busy", type=int, default=1, help="busy processes beside the tests")
    return parser.parse_args()


if __name__ == "__main__":
    main()
