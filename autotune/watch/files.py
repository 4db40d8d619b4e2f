"""Which files a process opens to write, by Python's audit hooks: what native code opens by itself is not seen."""

from __future__ import annotations

import os
import sys
from typing import Any, Sequence  # noqa: UP035 - as Python 3.8 has them

MOST = 200
"""Files that are kept, at most."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND
_NO_FILES = ("/dev/", "/proc/", "/sys/")


class WrittenFiles:
    """Keeps the names of files that are opened to write, or renamed to, from now on to the end of the process."""

    def __init__(self, scratch: Sequence[str]) -> None:
        """`scratch` are folders in which files are expected, and not kept."""
        self._expected = (*(os.path.realpath(folder) + os.sep for folder in scratch), *_NO_FILES)
        self._names: dict[str, None] = {}
        sys.addaudithook(self._heard)  # there is no way to take one away

    def left(self) -> list[str]:
        """Return the absolute names of those that are there now, outside of scratch folders."""
        return [
            name
            for name in list(self._names)
            if os.path.isfile(name) and not os.path.realpath(name).startswith(self._expected)
        ]

    def _heard(self, event: str, told: tuple[Any, ...]) -> None:
        if event == "open":
            name, _, flags = told
            if not isinstance(flags, int) or not flags & _WRITES:
                return
        elif event == "os.rename":
            name = told[1]
        elif event == "sqlite3.connect":
            name = told[0]
        else:
            return
        if len(self._names) < MOST and not isinstance(name, int):
            try:
                self._names[os.path.abspath(os.fsdecode(name))] = None
            except Exception:  # noqa: BLE001 - whatever is raised here would fail the program's own call
                return
