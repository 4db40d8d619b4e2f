"""The journal of a night, and what it adds up to: which cells were started, and how each ended."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import autotune
from autotune.errors import AutotuneError
from autotune.run.journal import now
from autotune.run.sealed_lines import LARGEST, JournalSubject, SealedLines, parse_lines
from autotune.sweep.events import (
    NIGHT_ENTRY,
    OPEN,
    CellEnded,
    CellStarted,
    Closed,
    NightAsked,
    NightCompared,
    NightEntry,
    NightInterrupted,
    NightOpened,
    Stored,
)
from autotune.sweep.night import NightPaths
from autotune.sweep.plan import Took
from autotune.user_files import read_bytes

NIGHT = JournalSubject("night", "works on this night of the sweep; wait for it, or begin another night")


class NightRecord:
    """What the lines of a night's journal add up to. Taking one in costs the same however many there are."""

    def __init__(self) -> None:
        self.asked: NightAsked | None = None
        self.started: dict[str, CellStarted] = {}
        """The newest start of each cell that was started."""
        self.ended: dict[str, CellEnded] = {}
        """How cells ended, without those that were started again since."""
        self.opened: list[NightOpened] = []
        """The starts of controllers, in order."""
        self.interrupted: NightInterrupted | None = None
        """Why the newest controller ended early; None where it did not, or was killed."""
        self.compared: NightCompared | None = None
        """What changed since the nights before; None before that is known, or once the night was opened again."""
        self.closed: Closed | None = None
        """The end of the night; None while there is none, or once it was opened again."""
        self._cells: frozenset[str] = frozenset()
        self._running = False

    def take(self, entry: NightEntry) -> str | None:
        """Take a line in; or return why no controller writes it here."""
        match entry:
            case NightAsked():
                if self.asked is not None:
                    return "a night is asked for once"
                self.asked, self._cells = entry, frozenset(entry.cells)
            case _ if self.asked is None:
                return "a night begins with what was asked for"
            case NightOpened():
                self.opened.append(entry)
                self._running = True
                self.interrupted = self.compared = self.closed = None
            case _ if not self._running:
                return "no controller was at work then"
            case CellStarted(cell=cell):
                if cell not in self._cells:
                    return f"the sweep has no cell {cell!r}"
                if cell in self.ended and self.ended[cell].state not in OPEN:
                    return f"cell {cell} had ended then"
                self.started[cell] = entry
                self.ended.pop(cell, None)
            case CellEnded(cell=cell):
                if cell not in self.started or cell in self.ended:
                    return f"cell {cell} was not under way then"
                self.ended[cell] = entry
            case Stored(cells=cells):
                if any(cell not in self.ended for cell in cells):
                    return "some of these cells had not ended then"
                for cell in cells:
                    self.ended[cell] = self.ended[cell].model_copy(update={"unstored": ""})
            case NightCompared():
                if len(self.ended) < len(self._cells):
                    return "some cells had not ended then"
                self.compared = entry
            case NightInterrupted():
                self.interrupted, self._running = entry, False
            case Closed():
                if len(self.ended) < len(self._cells):
                    return "some cells had not ended then"
                self.closed, self._running = entry, False
        return None

    @property
    def under_way(self) -> tuple[str, ...]:
        """The cells that were started and have not ended, in the order of their starts."""
        return tuple(cell for cell in self.started if cell not in self.ended)

    @property
    def unstored(self) -> tuple[str, ...]:
        """The cells that ended and whose results the store did not take."""
        return tuple(cell for cell, ended in self.ended.items() if ended.unstored)

    @property
    def pending(self) -> tuple[str, ...]:
        """The cells that a controller has still to run, in the order of the plan; what says nothing of a model too."""
        assert self.asked is not None
        return tuple(
            cell for cell in self.asked.cells if cell not in self.ended or self.ended[cell].state in OPEN
        )


class NightJournal:
    """The journal of one night, held under an exclusive lock while open. Use as a context manager, in one thread."""

    def __init__(self, paths: NightPaths) -> None:
        self._paths = paths
        self._lines = SealedLines(paths.journal, paths.lock, NIGHT)
        self.record = NightRecord()

    def __enter__(self) -> Self:
        content = self._lines.open()
        try:
            whole, last = parse_lines(content, self._paths.journal, NIGHT_ENTRY, self.record.take, NIGHT)
        except BaseException:
            self._lines.close()
            raise
        self._lines.go_on(whole, last)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()

    def append(self, entry: NightEntry) -> None:
        """Write one line durably. Raises JournalError when the disk refuses; what was recorded before stays."""
        self._lines.append(entry.model_dump_json().encode())
        wrong = self.record.take(entry)
        assert wrong is None, wrong

    def open_night(self) -> None:
        """Write that a controller begins to work."""
        self.append(NightOpened(version=autotune.__version__, machine=platform.node(), time=now()))


def read_night(paths: NightPaths) -> NightRecord:
    """Read a night's journal without locking it. Raises InputError when there is none, JournalError when damaged."""
    journal: Path = paths.journal
    record = NightRecord()
    content = read_bytes(journal, f"{paths.root} is no night of a sweep: {journal.name}", LARGEST)
    parse_lines(content, journal, NIGHT_ENTRY, record.take, NIGHT)
    return record


def what_cells_took(nights: Iterable[NightPaths]) -> dict[str, Took]:
    """Return what each cell took in the last of some nights (the oldest first) that came to a verdict on it.

    A night whose record cannot be read is passed over: it is no reason not to begin another.
    """
    found: dict[str, Took] = {}
    for night in nights:
        try:
            record = read_night(night)
        except AutotuneError:
            continue
        for cell, ended in record.ended.items():
            if ended.state not in OPEN and ended.probes:
                found[cell] = Took(cell=cell, night=night.id, probes=ended.probes, seconds=ended.seconds)
    return found
