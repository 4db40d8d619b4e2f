"""The append-only journal of a run: one JSON line an event, on disk before anything follows from it.

Every line is flushed with fsync. A torn last line (the tuner was killed while writing) is dropped; damage
anywhere else is an error, because a run must never go on from a history that is not the one it had. So is an edit:
each line ends with a seal, a digest of itself and of the seal before it, and stands where a tuner would write it.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from autotune.errors import InputError, JournalError, NoDiskSpace, RunInUse
from autotune.interruption import interruption, name_of, shielded
from autotune.run.events import ENTRY, Entry, Interrupted, Work
from autotune.run.order import Order
from autotune.run.record import Record
from autotune.units import MIB
from autotune.user_files import read_bytes

LARGEST = 256 * MIB
"""Bytes of a journal: a run of a thousand probes writes 5 MiB."""


class Journal:
    """The journal of one run, held under an exclusive lock while open. Use as a context manager."""

    def __init__(self, path: Path, lock: Path) -> None:
        self._path = path
        self._lock_path = lock
        self._lock: int | None = None
        self._file: int | None = None
        self._record = Record.of(())
        self._whole = 0
        """Bytes that hold whole lines."""
        self._last = b""
        """The last of them."""

    def __enter__(self) -> Self:
        try:
            self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._acquire(self._lock)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            content = read_bytes(self._path, most=LARGEST)
            self._record, self._whole, self._last = parse_journal(content, self._path)
        except OSError as error:
            self.close()
            raise InputError(
                f"{self._path.parent}: this run folder cannot be used: {error.strerror}",
                about="run",
            ) from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release file and lock; safe to call twice."""
        for handle in (self._file, self._lock):
            if handle is not None:
                os.close(handle)
        self._file = self._lock = None

    @property
    def record(self) -> Record:
        """What the journal says so far."""
        return self._record

    def append(self, entry: Entry) -> None:
        """Write one line durably. Raises JournalError when the disk refuses; what was recorded before stays."""
        assert self._file is not None, "the journal is open"
        line = sealed(entry.model_dump_json().encode(), self._last)
        with shielded():
            try:
                # Drop what a write that was cut short has left, or the line would be glued to it.
                os.ftruncate(self._file, self._whole)
                os.lseek(self._file, 0, os.SEEK_END)
                view = memoryview(line + b"\n")
                while view:
                    view = view[os.write(self._file, view) :]
                os.fsync(self._file)
            except OSError as error:
                os.ftruncate(self._file, self._whole)  # a torn line is worth less than none
                raise JournalError(
                    f"{self._path} cannot be written: {error.strerror}. Everything up to this moment is recorded",
                    "unwritable",
                ) from error
            self._whole += len(line) + 1
            self._last = line
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
                with suppress(
                    JournalError
                ):  # where nothing can be written any more, the error itself says so
                    self.append(Interrupted(work=work, number=number, why=reason(error), time=now()))
            raise

    def _acquire(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
            raise RunInUse(
                f"{self._path.parent}: another autotune{f' (process {holder})' if holder else ''} works on this "
                "run; wait for it, or start a run of its own",
                int(holder) if holder.isdecimal() else None,
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)


def holder(lock: Path) -> str | None:
    """Return the process that works on a run now, by what it wrote into the run's lock; None where nobody does."""
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # a run that nobody ever began, or another user's
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
    except OSError:
        return None
    finally:
        os.close(handle)
    return None


def read_record(path: Path) -> Record:
    """Read a journal without locking it. Raises InputError when there is none, JournalError when damaged."""
    content = read_bytes(path, f"{path.parent} is not a run of autotune: {path.name}", LARGEST)
    return parse_journal(content, path)[0]


def parse_journal(content: bytes, path: Path) -> tuple[Record, int, bytes]:
    """Return what the lines add up to, the number of bytes that hold whole ones, and the last of these.

    Raises JournalError for a line that is damaged and not the last, and for one that no tuner writes at its place.
    """
    with _uncollected():
        record, whole, last = _parse(content, path)
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


def _parse(content: bytes, path: Path) -> tuple[Record, int, bytes]:
    order = Order()
    whole, last = 0, b""
    lines = content.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn
        try:
            plain = line[:-_SEAL_SIZE] + b"}" if line[-_SEAL_SIZE:].startswith(_SEAL) else line
            entry = ENTRY.validate_json(plain)
        except ValidationError as error:
            if number == len(lines) - 1 and not lines[-1]:
                break  # a last line whose end reached the disk before its middle
            raise JournalError(
                f"{path}:{number}: this line of the journal is damaged ({error.errors()[0]['msg']}). A run is "
                "never continued from a damaged record; start a new one, or restore the file from a copy",
                "damaged",
                number,
            ) from None
        wrong = order.refusal(entry)
        if wrong is None and not line.endswith(_seal(plain, last)):
            wrong = "it is not what was written after the line before it"
        if wrong is not None:
            raise JournalError(
                f"{path}:{number}: this line of the journal ({entry.type}) is out of order: {wrong}. Lines were "
                "edited, moved, added or taken out, and a run is never continued from such a record; start a new one, "
                "or restore the file from a copy",
                "out of order",
                number,
            )
        whole, last = whole + len(line) + 1, line
    return order.record, whole, last


_SEAL = b',"seal":"'
_SEAL_SIZE = len(',"seal":"0123456789abcdef"}')


def sealed(entry: bytes, before: bytes) -> bytes:
    """Return an entry's JSON with a digest of it and of the seal before it, by which an edit shows, wherever it is."""
    return entry[:-1] + _seal(entry, before)


def _seal(entry: bytes, before: bytes) -> bytes:
    """Return the end of a line: what takes the place of the last brace of its JSON."""
    digest = hashlib.sha256(before[-_SEAL_SIZE:] + b"\n" + entry).hexdigest()[:16]
    return _SEAL + digest.encode() + b'"}'


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
