"""Faults of disks and folders: no room at one moment or another, and what may not be written."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.fault_case import INPUT, Case, case
from benchmarks.fault_trial import MACHINE, Expected, Trial, apart, fill, read_only, small_disk
from benchmarks.fault_tuner import Hooks, Kind


def full_disks(kind: Kind, expected: Expected, rooms: Iterable[int]) -> Iterator[Case]:
    """Return the cases in which files, renames and a whole file system take no more."""
    for index, entry in enumerate(expected.lines):
        name = f"no room for line {index + 1} ({entry.type})"
        yield case("disk", name, "arithmetic", partial(limited, index))
    for what, number in itertools.product(("write_text", "replace"), range(4)):
        yield case("disk", f"{what} {number + 1} refused", "arithmetic", partial(_refused, what, number))
        yield case("disk", f"killed at {what} {number + 1}", "arithmetic", partial(_killed_at, what, number))
    for pages in rooms:
        name = f"a file system with room for {4 * pages} KiB"
        yield Case("disk", name, kind, partial(_small_disk, kind, pages), predict=False)


def limited(index: int, trial: Trial, expected: Expected) -> None:
    """Let no file grow beyond a few bytes of the journal's line of that index."""
    room = expected.offsets[index] + 7  # a few bytes of the line still fit
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    hooks = Hooks(setup=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard)))
    _full(trial.disturbed(hooks, MACHINE).said, trial)
    trial.ends_as(expected)


def _full(said: str, trial: Trial) -> None:
    if "autotune resume" not in said:
        trial.miss(f"does not say how to go on: {said.strip()[-200:]}")


def _refused(what: str, number: int, trial: Trial, expected: Expected) -> None:
    def refuse() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ended = trial.tuner(Hooks(setup=partial(_at_call, what, number, refuse)))
    if ended.code == MACHINE:
        _full(ended.said, trial)
    elif ended.code != 0:
        trial.miss(f"exit code {ended.code}: {ended.said.strip()[-200:]}")
    trial.ends_as(expected)


def _killed_at(what: str, number: int, trial: Trial, expected: Expected) -> None:
    ended = trial.tuner(
        Hooks(setup=partial(_at_call, what, number, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    )
    if ended.code not in {0, -signal.SIGKILL}:
        trial.miss(f"exit code {ended.code}: {ended.said.strip()[-200:]}")
    trial.ends_as(expected)


def _at_call(what: str, number: int, action: Callable[[], None]) -> None:
    """Do something instead of a call of a path's method, of that number in this process."""
    method, calls = getattr(Path, what), itertools.count()

    def counted(path: Path, *given: Any, **named: Any) -> Any:
        if next(calls) == number:
            action()
        return method(path, *given, **named)

    setattr(Path, what, counted)


def _small_disk(kind: Kind, pages: int, folder: Path, expected: Expected) -> list[str]:
    def work() -> list[str]:
        small_disk(folder / "runs", 4096)
        trial = Trial(kind, folder, predict=False)
        filler = fill(folder / "runs", 4096 * pages)
        ended = trial.tuner()
        if ended.code == MACHINE:
            _full(ended.said, trial)
        elif ended.code != 0:
            trial.miss(f"exit code {ended.code}: {ended.said.strip()[-200:]}")
        filler.unlink()
        trial.ends_as(expected)
        return trial.misses

    return apart(work)


def no_temporary_room(kind: Kind, predict: bool = False) -> Case:
    """Return the case in which neither /dev/shm nor TMPDIR takes a byte."""

    def run(folder: Path, expected: Expected) -> list[str]:
        def work() -> list[str]:
            trial = Trial(kind, folder, predict)
            for place in (Path("/dev/shm"), trial.temporary):
                small_disk(place, 1)
                fill(place)
            trial.tuner()
            for place in (Path("/dev/shm"), trial.temporary):
                (place / "filler").unlink()
            trial.ends_as(expected)
            return trial.misses

        return apart(work)

    return Case("folders", "/dev/shm and TMPDIR full", kind, run, predict=predict)


def read_only_runs(kind: Kind) -> Case:
    """Return the case of a run's folder that cannot be written."""

    def run(folder: Path, expected: Expected) -> list[str]:
        def work() -> list[str]:
            read_only(folder)
            trial.disturbed(Hooks(), INPUT)
            return trial.misses

        trial = Trial(kind, folder, predict=False)
        trial.misses += apart(work)
        trial.ends_as(expected)
        return trial.misses

    return Case("folders", "runs folder read-only", kind, run, predict=False)
