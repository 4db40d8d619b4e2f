"""When a probe of a training is over: at the same optimizer step on all ranks, which share nothing but a folder."""

from __future__ import annotations

import os
from typing import Any

WARM_UP = 2
"""Optimizer steps that are no sample: state is made in the first, and allocators settle in the second."""


class Stopping:
    """Says which step is the last.

    The first rank decides, once it has timed a step, and no other can be done with that step before it is said: it
    waits for the first rank's gradients.
    """

    def __init__(self, folder: str, wanted: int, seconds: float) -> None:
        """At most so many steps (0 never stops), and after the warm-up as many as take so many seconds."""
        self._file = os.path.join(folder, "stop")
        self._wanted = wanted
        self._seconds = seconds
        self._at: int | None = None

    def is_due(self, steps: int, rank: int, last: dict[str, Any]) -> bool:
        """Tell whether so many steps are enough; `last` is the record of the last one."""
        if not self._wanted:
            return False
        if self._wanted <= WARM_UP + 1:
            return steps >= self._wanted
        if self._at is None:
            self._at = self._read()
        if self._at is None and rank == 0 and steps > WARM_UP:
            each = last["wait"] + sum(last["others"]) + last["last"] + last["optimizer"]
            more = min(self._wanted - WARM_UP, max(2, int(self._seconds / max(each, 1e-6))))
            self._at = max(WARM_UP + more, steps + 1)
            write_whole(self._file, str(self._at))
        return self._at is not None and steps >= self._at

    def _read(self) -> int | None:
        try:
            with open(self._file) as file:
                return int(file.read())
        except (OSError, ValueError):
            return None


def write_whole(path: str, text: str) -> None:
    """Write a file that nobody sees half written."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.replace(f"{path}.new", path)
