"""What a function made of pairs of timelines, the last few: of a ladder the same are asked for in a row."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from autotune.timeline.timeline import Timeline

REMEMBERED = 4
"""Pairs of timelines that are kept with what was made of them, of about 1 MB each."""

_Result = TypeVar("_Result")


class Recent(Generic[_Result]):
    """Remembers what a function made of two timelines and a switch, the last few times."""

    def __init__(
        self, function: Callable[[Timeline, Timeline, bool], _Result], remembered: int = REMEMBERED
    ) -> None:
        self._function, self._remembered = function, remembered
        self._known: dict[tuple[int, int, bool], tuple[Timeline, Timeline, _Result]] = {}
        self._lock = Lock()

    def of(self, one: Timeline, other: Timeline, switch: bool) -> _Result:
        """Return the result for these very timelines, made once; they are kept, and so are their numbers their own."""
        key = id(one), id(other), switch
        with self._lock:
            known = self._known.pop(key, None) or (one, other, self._function(one, other, switch))
            while len(self._known) >= self._remembered:
                self._known.pop(next(iter(self._known)))
            self._known[key] = known
        return known[2]
