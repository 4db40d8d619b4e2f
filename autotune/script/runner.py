"""The worker of a probe whose training is a user's own command: starts it, watches the watch, and ends it.

Run as a script (`python -I -S runner.py REQUEST PIPE`) with the standard library alone. Beside the request lies its
order (`CommandOrder`). It ends when the command has, or a moment after the watch has said all that there is to say:
then the supervisor ends what is left. What it saw stands in `ended.json`, beside the watch's records.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import time
from collections import deque
from typing import Any, TypedDict

STATE = struct.Struct("<IIII")
"""As `watch/watcher.py` writes it: phase, optimizer steps, micro-steps, process id."""
PHASES = ("start", "build", "forward", "backward", "optimizer", "evaluation", "save")
TICK = 0.02
"""Seconds between looks at the processes' memory."""
RECENT = 0.25
"""Seconds before its end over which a process's last memory is the largest sample."""
MOST_FILES = 20_000
"""Files of the command's folder that are looked at, those of the upper folders first."""
RUN = "journal.jsonl"
"""A folder with this file is a run's, whose files are not the command's."""
SETTLE = {"stopped": 10.0, "end": 10.0, "exception": 4.0, "swallowed_oom": 4.0, "no_step": 4.0}
"""Seconds that the command gets to end by itself, by how the watch of one of its training processes ended."""


class CommandOrder(TypedDict):
    """What the tuner asks for."""

    argv: list[str]
    folder: str
    env: dict[str, str]
    """Variables that are set beside those that this process has."""
    files: dict[str, str]
    """Texts that are written before, by path."""
    folders: list[str]
    """Folders that are made before."""
    scratch: list[str]
    """Folders in which files are expected."""
    watch: str
    """Where the watch writes, and this program."""


def main(request: str, pipe: int) -> None:
    """Run the order to its end."""
    with open(os.path.join(os.path.dirname(request), "order.json"), encoding="utf-8") as file:
        order: CommandOrder = json.load(file)
    for folder in [*order["folders"], order["watch"]]:
        os.makedirs(folder, exist_ok=True)
    for path, text in order["files"].items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    began = time.monotonic()
    before = listing(order["folder"], order["scratch"])
    seen = _Seen(order["watch"], pipe)
    try:
        child = subprocess.Popen(
            order["argv"], cwd=order["folder"], env={**os.environ, **order["env"]}, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        seen.write({"failed": f"{order['argv'][0]} cannot be started: {error.strerror}"})
        return
    due: float | None = None
    while (status := child.poll()) is None and (due is None or time.monotonic() < due):
        seen.look()
        if due is None and (settle := seen.settling()) is not None:
            due = time.monotonic() + settle
        time.sleep(TICK)
    seen.look()
    seen.write(
        {
            "exit_code": status if status is not None and status >= 0 else None,
            "signal": -status if status is not None and status < 0 else None,
            "hung": status is None,
            "seconds": time.monotonic() - began,
            "written": sorted(listing(order["folder"], order["scratch"]) - before),
        }
    )


def listing(folder: str, scratch: list[str]) -> set[str]:
    """Return the files below a folder, without those of scratch folders and of runs, and without following links."""
    found: set[str] = set()
    left_out = {os.path.realpath(one) for one in scratch}
    pending = deque([os.path.realpath(folder)])
    while pending and len(found) < MOST_FILES:
        with contextlib.suppress(OSError), os.scandir(pending.popleft()) as entries:
            inside = list(entries)
            if any(entry.name == RUN for entry in inside):
                continue
            folders = [entry.path for entry in inside if entry.is_dir(follow_symlinks=False)]
            pending.extend(path for path in folders if path not in left_out)
            found.update(entry.path for entry in inside if not entry.is_dir(follow_symlinks=False))
    return found


class _Seen:
    """What is seen of the command's processes from outside."""

    def __init__(self, folder: str, pipe: int) -> None:
        self._folder = folder
        self._pipe = pipe
        self._told: tuple[int, int] = (0, 0)
        self._data: dict[int, dict[str, Any]] = {}
        self._read: set[str] = set()
        self._settle: float | None = None

    def look(self) -> None:
        """Sample memory, pass on phases, and read the records that are new."""
        now = time.monotonic()
        furthest = (0, 0)
        for name in os.listdir(self._folder):
            if name.startswith("state-"):
                state = self._state(name)
                if state is None:
                    continue
                phase, steps, _, pid = state
                furthest = max(furthest, (steps, phase))
                self._sample(pid, now)
            elif name.startswith("process-") and name.endswith(".json") and name not in self._read:
                with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                    record = json.load(file)
                if record["ended"] == "refused":  # it may be caught, and then more will be said
                    continue
                self._read.add(name)
                if record["model"] is not None or record["steps"]:
                    settle = SETTLE[record["ended"]]
                    self._settle = settle if self._settle is None else min(self._settle, settle)
        if furthest != self._told and furthest[1] < len(PHASES):
            self._told = furthest
            line = json.dumps({"type": "progress", "phase": PHASES[furthest[1]], "step": furthest[0]})
            with contextlib.suppress(OSError):
                os.write(self._pipe, line.encode() + b"\n")

    def settling(self) -> float | None:
        """Return the seconds that the command gets yet; None while its training goes on."""
        return self._settle

    def write(self, ended: dict[str, Any]) -> None:
        """Write what became of the command."""
        processes = {
            str(pid): {"peak": seen["peak"], "recent": max((size for _, size in seen["samples"]), default=0)}
            for pid, seen in self._data.items()
        }
        path = os.path.join(self._folder, "ended.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**ended, "data": processes}, file)

    def _state(self, name: str) -> tuple[int, ...] | None:
        with contextlib.suppress(OSError, struct.error), open(os.path.join(self._folder, name), "rb") as file:
            return STATE.unpack(file.read(STATE.size))
        return None

    def _sample(self, pid: int, now: float) -> None:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
            data = int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
            if data:
                seen = self._data.setdefault(pid, {"peak": 0, "samples": []})
                seen["peak"] = max(seen["peak"], data)
                seen["samples"] = [(at, size) for at, size in seen["samples"] if at >= now - RECENT] + [
                    (now, data)
                ]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
