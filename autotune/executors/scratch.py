"""Folders for what is gone at the end: removed by their owner, or by the next start where the owner was killed.

A folder belongs to whoever holds the lock of the file `lock` inside it. The kernel lets go of that with the process,
whatever ended it (also when the machine went down), so a lock that can be had says for sure that the owner is dead; a
process id would not, for ids come again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.units import format_bytes

PREFIX = ".autotune-scratch-"
"""How the folders are called; nobody else's are touched."""
_LOCK = "lock"


class NoRoom(AutotuneError):
    """No place takes a scratch folder of the size needed: this machine's fault."""


def temporary() -> Path:
    """Return the place that `TMPDIR` names, else the system's."""
    return Path(tempfile.gettempdir())


@contextmanager
def scratch_folder(places: Sequence[Path], needed: int = 0) -> Iterator[Path]:
    """Give an empty folder in the first of the places that can be written to and has `needed` bytes free.

    What dead processes left in any of the places is removed first. Raises NoRoom with the reason for each place.
    """
    places = tuple(dict.fromkeys(place.absolute() for place in places))
    for place in places:
        clear_leftovers(place)
    folder, lock = _make(places, needed)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def clear_leftovers(place: Path) -> None:
    """Remove the scratch folders in a place whose owners are dead; those of living processes stay as they are."""
    for folder in _existing(place):
        with contextlib.suppress(OSError):
            # Another user's, or a file system without locks: not ours to judge.
            lock = _lock(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _existing(place: Path) -> Iterable[Path]:
    try:
        return [path for path in place.iterdir() if path.name.startswith(PREFIX) and not path.is_symlink()]
    except OSError:
        return []


def _make(places: Iterable[Path], needed: int) -> tuple[Path, int]:
    reasons = []
    for place in places:
        try:
            free = shutil.disk_usage(place).free
            if free < needed:
                reasons.append(
                    f"{place} has {format_bytes(free)} free, and {format_bytes(needed)} are needed"
                )
                continue
            return _made(place)
        except OSError as error:
            reasons.append(f"{place} cannot be written to ({error.strerror})")
    raise NoRoom(
        "there is no room for what a proof writes (a checkpoint, what is offloaded to disk): "
        f"{'; '.join(reasons)}. Set TMPDIR to a folder that has room"
    )


def _made(place: Path) -> tuple[Path, int]:
    """Make a folder and lock it. One that is cleared away before it is locked is made anew."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        with contextlib.suppress(FileNotFoundError):
            lock = _lock(folder)
            if lock is not None:
                return folder, lock


def _lock(folder: Path) -> int | None:
    """Return the descriptor of a folder's lock once it is ours; None where another process holds it or was faster."""
    path = folder / _LOCK
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_ino == path.stat().st_ino:  # else another has removed the folder meanwhile
            return lock
    except BlockingIOError:
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None
