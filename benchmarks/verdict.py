"""How a benchmark ends: with 0 where its targets are met, 1 where one is missed, 2 where nothing could be measured.

Each script says its targets in its docstring, and has `--smallest` for a case of seconds that shows that it runs.
Targets of time and of many cases are not judged there: they are those of the whole, on a machine that does nothing
else.
"""

from __future__ import annotations

import sys

MET, MISSED, UNMEASURED = 0, 1, 2
SMALLEST = "the smallest case only, in seconds: that the script runs; its record is marked so"
"""Help of the option."""


def verdict(missed: list[str]) -> int:
    """Print every target that was missed, each in a line, and return the exit code."""
    for line in missed:
        print(f"target missed: {line}", file=sys.stderr)
    return MISSED if missed else MET


def unmeasured(script: str, why: str) -> SystemExit:
    """Print in one line why nothing was measured; return what to raise."""
    print(f"{script}: nothing was measured: {' '.join(why.split())}", file=sys.stderr)
    return SystemExit(UNMEASURED)
