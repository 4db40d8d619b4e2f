"""A file of sealed lines, one JSON document each, only ever appended to: what journals are written in.

Every line is flushed with fsync. A torn last line (its writer was killed while writing) is dropped; damage
anywhere else is an error, because nothing must ever go on from a history that is not the one it had. So is an edit:
each line ends with a seal, a digest of itself and of the seal before it, and stands where its writer would put it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from autotune import __version__
from autotune.errors import InputError, JournalError, RunInUse, unwritable
from autotune.interruption import shielded
from autotune.units import MIB
from autotune.user_files import read_bytes
from autotune.validation import Frozen

LARGEST = 256 * MIB
"""Bytes of a journal: a run of a thousand probes writes 5 MiB."""

_Line = TypeVar("_Line", bound=Frozen)


@dataclass(frozen=True)
class JournalSubject:
    """What a journal records, in the words of its errors."""

    noun: str
    """Such as `run`."""
    in_use: str
    """What works on it, and what to do."""


class OtherVersion(InputError):
    """Another version of autotune wrote what this one cannot read: it is whole, and nothing was changed.

    `version` is the one that the record names; None where it names none, or what is no version.
    """

    def __init__(self, message: str, version: str | None, about: str) -> None:
        self.version = version
        super().__init__(message, about=about)


class SealedLines:
    """A file of sealed lines, held under an exclusive lock between `open` and `close`."""

    def __init__(self, path: Path, lock: Path, recorded: JournalSubject) -> None:
        self._path = path
        self._lock_path = lock
        self._recorded = recorded
        self._lock: int | None = None
        self._file: int | None = None
        self._whole = 0
        """Bytes that hold whole lines."""
        self._last = b""
        """The last of them."""

    def open(self) -> bytes:
        """Take the lock and return what the file holds. Raises RunInUse, or InputError where it cannot be used."""
        try:
            self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._acquire(self._lock)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            return read_bytes(self._path, most=LARGEST)
        except OSError as error:
            self.close()
            noun = self._recorded.noun
            raise unwritable(
                f"{self._path.parent}: this {noun} folder cannot be used", error, noun
            ) from error
        except BaseException:
            self.close()
            raise

    def go_on(self, whole: int, last: bytes) -> None:
        """Append from here on, after so many bytes of whole lines, of which `last` is the last."""
        self._whole, self._last = whole, last

    def append(self, entry: bytes) -> None:
        """Write one line durably. Raises JournalError when the disk refuses; what was recorded before stays."""
        assert self._file is not None, "the journal is open"
        line = sealed(entry, self._last)
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

    def close(self) -> None:
        """Release file and lock; safe to call twice."""
        for handle in (self._file, self._lock):
            if handle is not None:
                os.close(handle)
        self._file = self._lock = None

    def _acquire(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
            raise RunInUse(
                f"{self._path.parent}: another autotune{f' (process {holder})' if holder else ''} "
                f"{self._recorded.in_use}",
                int(holder) if holder.isdecimal() else None,
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)


def holder(lock: Path) -> str | None:
    """Return the process that holds a lock now, by what it wrote into it; None where nobody does."""
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # what nobody ever began, or another user's
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


def parse_lines(
    content: bytes,
    path: Path,
    line_type: TypeAdapter[_Line],
    refusal: Callable[[_Line], str | None],
    recorded: JournalSubject,
) -> tuple[int, bytes]:
    """Hand each line to `refusal`, which takes it in or says why nobody writes it there.

    Returns the number of bytes that hold whole lines, and the last of these. Raises JournalError for a line that is
    damaged and not the last, and for one that is refused; OtherVersion for a whole line that another version wrote.
    """
    noun = recorded.noun
    whole, last = 0, b""
    lines = content.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn
        try:
            plain = line[:-_SEAL_SIZE] + b"}" if line[-_SEAL_SIZE:].startswith(_SEAL) else line
            entry = line_type.validate_json(plain)
        except ValidationError as error:
            if line.endswith(_seal(plain, last)):  # whole, so it is no tear that may be dropped
                version = version_in(lines[:number])
                raise OtherVersion(
                    f"{path}:{number}: {another_version(version)} wrote this line, which version {__version__} does "
                    f"not read ({error.errors()[0]['msg']}). Nothing was changed; install the version that wrote it, "
                    f"or start a new {noun}",
                    version,
                    about=noun,
                ) from None
            if number == len(lines) - 1 and not lines[-1]:
                break  # a last line whose end reached the disk before its middle
            raise JournalError(
                f"{path}:{number}: this line of the journal is damaged ({error.errors()[0]['msg']}). A {noun} is "
                "never continued from a damaged record; start a new one, or restore the file from a copy",
                "damaged",
                number,
            ) from None
        wrong = refusal(entry)
        if wrong is None and not line.endswith(_seal(plain, last)):
            wrong = "it is not what was written after the line before it"
        if wrong is not None:
            kind = getattr(entry, "type", "")
            raise JournalError(
                f"{path}:{number}: this line of the journal ({kind}) is out of order: {wrong}. Lines were "
                f"edited, moved, added or taken out, and a {noun} is never continued from such a record; start a new "
                "one, or restore the file from a copy",
                "out of order",
                number,
            )
        whole, last = whole + len(line) + 1, line
    return whole, last


def version_in(lines: Sequence[bytes]) -> str | None:
    """Return the version of autotune that the last of these lines to name one names, whatever else stands there."""
    for line in reversed(lines):
        try:
            named = json.loads(line).get("version")
        except (ValueError, AttributeError, RecursionError):
            continue
        if isinstance(named, str) and _VERSION.fullmatch(named):
            return named
    return None


def another_version(version: str | None) -> str:
    """Return who wrote what cannot be read; a number says nothing where it is this version's too."""
    return "another version of autotune" if version in (None, __version__) else f"autotune {version}"


_VERSION = re.compile(r"[0-9A-Za-z.+!_-]{1,40}")
_SEAL = b',"seal":"'
_SEAL_SIZE = len(',"seal":"0123456789abcdef"}')


def sealed(entry: bytes, before: bytes) -> bytes:
    """Return an entry's JSON with a digest of it and of the seal before it, by which an edit shows, wherever it is."""
    return entry[:-1] + _seal(entry, before)


def _seal(entry: bytes, before: bytes) -> bytes:
    """Return the end of a line: what takes the place of the last brace of its JSON."""
    digest = hashlib.sha256(before[-_SEAL_SIZE:] + b"\n" + entry).hexdigest()[:16]
    return _SEAL + digest.encode() + b'"}'
