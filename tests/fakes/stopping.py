"""Ends a tuner at a line of its journal, in process: as SIGKILL does (nothing runs after it), or by one it sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import Signals

import pytest

from autotune.interruption import Interruption
from autotune.run.events import Entry
from autotune.run.journal import Journal

Place = Callable[[int, Entry], bool]
"""Says of a line that was written, and of its number since the tuner's start (from 1), whether the tuner ends there."""


class Killed(BaseException):
    """Stands for SIGKILL. While it is under way nothing more reaches the disk."""


@contextmanager
def ending(place: Place, signal: str) -> Iterator[None]:
    """End the tuner right after the first line of that `place`, by a signal of that name."""
    append, lines, dead = Journal.append, 0, False

    def watched(journal: Journal, entry: Entry) -> None:
        nonlocal lines, dead
        if dead:
            raise Killed
        append(journal, entry)
        lines += 1
        if place is not None and place(lines, entry):
            dead = signal == "SIGKILL"
            raise Killed if dead else Interruption(Signals[signal])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", watched)
        yield


def at(number: int) -> Place:
    """Return the place after so many lines."""
    return lambda lines, entry: lines == number


def like(example: Entry) -> Place:
    """Return the place of the next line about the same: of the same type and number."""
    wanted = type(example), getattr(example, "number", None)
    return lambda lines, entry: (type(entry), getattr(entry, "number", None)) == wanted
