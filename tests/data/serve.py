"""A server of warm probes whose workers run a script: `serve.py SCRIPT [WORD ...] IMPORTS CONTROL LIFELINE`.

Imports nothing else. A WORD has it misbehave: `die`, `hang`, `refuse` (it says that it cannot serve), `data=BYTES` (it
says that it holds so much).
"""

import os
import runpy
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from autotune.probe.fork_server import die_with_the_tuner, serve

script, control, lifeline = sys.argv[1], int(sys.argv[-2]), int(sys.argv[-1])


def run(argv: list[str]) -> None:
    """Run the script as a program of that command line."""
    sys.argv = argv[argv.index(script) :]
    runpy.run_path(script, run_name="__main__")


die_with_the_tuner(lifeline)
if "hang" in sys.argv:
    time.sleep(600)
if "die" in sys.argv:
    sys.exit("last words")
data = int(next((word.removeprefix("data=") for word in sys.argv if word.startswith("data=")), 0))
refused = "for a test" if "refuse" in sys.argv else ""
serve(socket.socket(fileno=control), lifeline, {"data": data, "refused": refused, "pid": os.getpid()}, run)
