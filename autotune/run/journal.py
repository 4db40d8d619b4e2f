"""The append-only journal of a run: one JSON line an event, on disk before anything follows from it.

How lines reach the disk, and what becomes of those that are torn or edited, is `sealed_lines`' concern.
"""

from __future__ import annotations

import errno
import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from autotune.errors import JournalError, NoDiskSpace
from autotune.interruption import interruption, name_of, shielded
from autotune.run.events import ENTRY, Entry, Interrupted, Work
from autotune.run.order import JournalOrder
from autotune.run.record import Record
from autotune.run.sealed_lines import LARGEST, JournalSubject, SealedLines, parse_lines
from autotune.units import MIB
from autotune.user_files import read_bytes

RUN = JournalSubject("run", "works on this run; wait for it, or start a run of its own")
LONG = MIB
"""Bytes of a journal from which reading it without collections pays: each time, garbage that is there counts as old,
so a process that reads many journals, one after the other, would keep it for long."""


class Journal:
    """The journal of one run, held under an exclusive lock while open. Use as a context manager."""

    def __init__(self, path: Path, lock: Path) -> None:
        self._path = path
        self._lines = SealedLines(path, lock, RUN)
        self._record = Record.of(())

    def __enter__(self) -> Self:
        content = self._lines.open()
        try:
            self._record, whole, last = parse_journal(content, self._path)
        except BaseException:
            self.close()
            raise
        self._lines.go_on(whole, last)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release file and lock; safe to call twice."""
        self._lines.close()

    @property
    def record(self) -> Record:
        """What the journal says so far."""
        return self._record

    def append(self, entry: Entry) -> None:
        """Write one line durably. Raises JournalError when the disk refuses; what was recorded before stays."""
        with shielded():
            self._lines.append(entry.model_dump_json().encode())
            self._record = self._record.with_line(entry)

    @contextmanager
    def doing(self, work: Work, number: int | None = None) -> Iterator[None]:
        """Journal that the body was interrupted, should it raise (an interruption, a fault of this machine).

        The body must have ended its processes by then. A probe or proof is one that the body journals the start of.
        """
        try:
            yield
        except BaseException as error:
            under_way = work == "inspection" or work == "trace" or self.record.is_under_way(work, number or 0)
            if under_way:
                with suppress(JournalError):
                    # Where nothing can be written any more, the error itself says so.
                    self.append(Interrupted(work=work, number=number, why=reason(error), time=now()))
            raise


def read_record(path: Path) -> Record:
    """Read a journal without locking it. Raises InputError when there is none, JournalError when damaged.

    OtherVersion is raised where another version wrote a line that this one cannot read.
    """
    content = read_bytes(path, f"{path.parent} is not a run of autotune: {path.name}", LARGEST)
    return parse_journal(content, path)[0]


def parse_journal(content: bytes, path: Path) -> tuple[Record, int, bytes]:
    """Return what the lines add up to, the number of bytes that hold whole ones, and the last of these.

    Raises JournalError for a line that is damaged and not the last, and for one that no tuner writes at its place.
    """
    with _uncollected() if len(content) >= LONG else nullcontext():
        order = JournalOrder()
        whole, last = parse_lines(content, path, ENTRY, order.refusal, RUN)
        record = order.record
        _ = record.history  # as many records again
        return record, whole, last


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep Python from looking for cycles meanwhile: among records there are none, and it would look at all, often."""
    was, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # with `unfreeze`: what was made counts as old, or the first collection would begin with all of it
        if not frozen:  # else it is left to whoever froze
            gc.unfreeze()
        if was:
            gc.enable()


def reason(error: BaseException) -> str:
    """Return in a few words why a tuner ends: the signal's name, or what this machine refused."""
    if (asked := interruption(error)) is not None:
        return name_of(asked)
    if isinstance(error, NoDiskSpace):
        return "disk full"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            return "disk full"
        cause = cause.__cause__ or cause.__context__
    return f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")


def now() -> str:
    """Return the time of an entry: UTC in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
