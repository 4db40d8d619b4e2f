"""Run the smallest case of several benchmarks in one process, which imports torch once; print each one's exit code.

python -m tests.docs.on_benchmarks FOLDER 'NAME OPTION ...' ...
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback


def ended(script: str, options: list[str]) -> int | str:
    """Run one as `python -m` would; return its exit code, or the traceback that it ended in."""
    sys.argv = [script, *options]
    try:
        runpy.run_module(f"benchmarks.{script}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else str(end.code)
    except Exception:  # noqa: BLE001 - whatever it is, the others are tried too
        return traceback.format_exc()
    return 0


def main(folder: str, *commands: str) -> None:
    found = {}
    for command in commands:
        script, *options = command.split()
        print(command, file=sys.stderr)
        found[command] = ended(script, [*options, "--smallest", "--out", folder])
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
