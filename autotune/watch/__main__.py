"""`python -m autotune.watch script.py ARGS...`: run a script as python would, watched where a probe asks for it."""

from __future__ import annotations

import os
import runpy
import sys

from autotune.watch import watcher


def main(words: list[str]) -> None:
    """Run the script that is named first, or with `-m` the module, with the rest as its arguments."""
    if not words or words == ["-m"]:
        raise SystemExit("usage: python -m autotune.watch [-m] SCRIPT ARGS...")
    watcher.install()
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
