"""A worker made of arithmetic, under real supervisors: `fault_worker.py REQUEST RESULT_FD`. Standard library only.

It goes through the phases of its request and then says the answer that FAULT_ANSWER holds. In the phase FAULT_PHASE it
waits to be killed or stopped; with FAULT_DAEMON it leaves a process in a session of its own, whose parent is gone.
"""

import json
import os
import sys
import time

TRAINING = ("start", "build", "forward", "backward", "optimizer")
PHASES = {"inspect": ("start", "build"), "train": TRAINING, "prove": (*TRAINING, "evaluation", "save")}


def leave_a_daemon() -> None:
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, b"x")
            time.sleep(600)
        os._exit(0)
    os.read(read, 1)
    os.wait()


def main(request: str, result: int) -> None:
    with open(request, encoding="utf-8") as file:
        kind = json.load(file)["kind"]
    if "FAULT_DAEMON" in os.environ:
        leave_a_daemon()
    for phase in PHASES[kind]:
        os.write(result, json.dumps({"type": "progress", "phase": phase}).encode() + b"\n")
        if phase == os.environ.get("FAULT_PHASE"):
            time.sleep(600)
    os.write(result, os.environ["FAULT_ANSWER"].encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
