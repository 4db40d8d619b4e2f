"""Cases that are gathered in as many calls as it takes: each result is saved at once, and what ended is not run again.

The state is one file of JSON lines, which may travel from machine to machine. Standard library alone: it is read before
anything else could be imported.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRIES = 2
"""Calls that may begin a case without ending it, before it is left out: it ends them."""
KEPT_TRACEBACK = 4_000
"""Characters of a failure's traceback that are kept, the last ones."""


@dataclass(frozen=True)
class Case:
    """One thing that is to be seen on a GPU."""

    name: str
    seconds: float
    """What it takes at most, about: it is begun only where so much is left."""
    run: Callable[[float], dict[str, Any]]
    """Given the seconds that are left, return what was found, as JSON holds it; raise where that failed."""


class TimeIsUp(Exception):
    """A case has not come to its end in time; what it has so far it keeps itself, and a next call goes on with it."""


class WrongState(Exception):
    """The file is of something else."""


class State:
    """What has been found so far."""

    def __init__(self, path: Path, subject: str, largest: int) -> None:
        """`subject` is what the cases are of; the file is kept below `largest` bytes. Raises WrongState."""
        self.path, self._largest = path, largest
        self.results: dict[str, dict[str, Any]] = {}
        """What ended, by its case."""
        self._begun: Counter[str] = Counter()
        lines = self._lines()
        if lines and lines[0].get("subject") != subject:
            raise WrongState(
                f"{path} is of {lines[0].get('subject')}, not of {subject}; name another with --out"
            )
        for line in lines:
            if "began" in line:
                self._begun[line["case"]] += 1
            elif "postponed" in line:
                self._begun[line["case"]] -= 1
            elif "again" in line:
                self._forget(line["case"])
            elif "result" in line:
                self.results[line["case"]] = line
        if not lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
            self._append({"subject": subject})

    def left(self, cases: Sequence[Case]) -> list[Case]:
        """Return the cases that have not ended, without those that ended as many calls as they may."""
        return [case for case in cases if case.name not in self.results and self._begun[case.name] < TRIES]

    def given_up(self, cases: Sequence[Case]) -> list[str]:
        """Return the cases that ended the calls that ran them."""
        return [
            case.name for case in cases if case.name not in self.results and self._begun[case.name] >= TRIES
        ]

    def called(self, **facts: Any) -> None:
        """Write down a call: where, when, with what."""
        self._append({"call": facts})

    def reopen(self, name: str) -> None:
        """Let a case run once more; what it found before stays in the file."""
        self._forget(name)
        self._append({"case": name, "again": True})

    def _forget(self, name: str) -> None:
        self.results.pop(name, None)
        self._begun.pop(name, None)

    def begin(self, case: Case) -> None:
        """Write down that a case begins."""
        self._begun[case.name] += 1
        self._append({"case": case.name, "began": time.time()})

    def postpone(self, case: Case) -> None:
        """Write down that a case goes on in another call: it ended none."""
        self._begun[case.name] -= 1
        self._append({"case": case.name, "postponed": True})

    def end(self, case: Case, result: dict[str, Any], seconds: float) -> None:
        """Write down what a case found; only that it ended, where the file would grow too large."""
        line = {"case": case.name, "result": result, "seconds": round(seconds, 3)}
        if self.path.stat().st_size + len(json.dumps(line)) > self._largest:
            line["result"] = {"left_out": "the file would have grown beyond --max-file-size"}
        self.results[case.name] = line
        self._append(line)

    def _lines(self) -> list[dict[str, Any]]:
        """Read the file; a last line that a kill tore is cut off, so that the next one stands by itself."""
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            os.truncate(self.path, len(whole))
        return [json.loads(line) for line in whole.splitlines()]

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def gather(cases: Sequence[Case], state: State, until: float) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Run the cases that are left, in their order, as far as `until` (of `time.monotonic`) leaves them time.

    One that fails has failed: what was raised is its result, unless that is TimeIsUp. One that would take too
    long is passed over for those behind it. Yields each with its result, which is saved by then.
    """
    for case in state.left(cases):
        left = until - time.monotonic()
        if case.seconds > left:
            continue
        state.begin(case)
        began = time.monotonic()
        try:
            found = case.run(left)
        except TimeIsUp:
            state.postpone(case)
            continue
        except Exception as error:  # noqa: BLE001 - evidence too, and others are still to come
            found = {
                "failed": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc()[-KEPT_TRACEBACK:],
            }
        state.end(case, found, time.monotonic() - began)
        yield case, found


class Attachments:
    """Files beside the state, for people and for a replay: so many and so large at most, and no snapshots."""

    def __init__(self, folder: Path, most: int, largest: int) -> None:
        """`most` counts the state's file too."""
        self.folder, self._most, self._largest = folder, most, largest

    def keep(self, source: Path, name: str) -> str:
        """Copy a file under a name, and say what became of it."""
        if not source.exists():
            return f"{name}: there is none"
        size = source.stat().st_size
        target = self.folder / name
        others = [path for path in self.folder.iterdir() if path.is_file() and path != target]
        if size > self._largest or len(others) >= self._most:
            return f"{name}: left out ({size} bytes, {len(others)} other files)"
        target.write_bytes(source.read_bytes())
        return name
