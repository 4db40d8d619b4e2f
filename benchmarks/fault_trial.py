"""One trial: a run whose tuner is disturbed, resumed until it ends, and compared with an undisturbed one."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import tempfile
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.run.best import Best
from autotune.run.events import Entry, Finished, Inspected, ProofStarted, RematchStarted, Started
from autotune.run.journal import read_record
from autotune.run.paths import RunPaths
from autotune.run.record import Record
from autotune.techniques.families import title as title_of
from autotune.trial import ProofFinished, RematchFinished
from benchmarks.fault_tuner import Hooks, Kind, Tuner, finish, is_lost, make_run, remaining, start

MARGIN = 3.0
"""How many times faster or slower the winner of a disturbed run with real probes may be: its speeds are noise, of a
model whose steps take milliseconds on a machine that does other work. With arithmetic everything must be equal."""
ENDED_BY = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}
"""What a tuner that a signal ends exits with."""
MACHINE = 1
"""The exit code of a tuner that this machine failed."""


@dataclass(frozen=True)
class Expected:
    """What an undisturbed run comes to."""

    best: Best
    trials: tuple[tuple[str, str], ...]
    """Candidate and verdict of each."""
    lines: tuple[Entry, ...]
    offsets: tuple[int, ...]
    """Bytes of the journal before each line."""
    files: frozenset[str]
    temporary: frozenset[str] = frozenset()
    """What libraries keep in TMPDIR without a disturbance, too."""


@dataclass
class Trial:
    """A run under trial, and what was not as it should be."""

    kind: Kind
    folder: Path
    predict: bool = True
    misses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.root = make_run(self.kind, self.folder / "runs", self.predict)
        self.paths = RunPaths(self.root)

    def miss(self, what: str) -> None:
        """Note what was not as it should be."""
        self.misses.append(what)

    def tuner(self, hooks: Hooks | None = None) -> Tuner:
        """Run a tuner to its end; nothing of it may be left then."""
        hooks = hooks or Hooks()
        setup = hooks.setup

        def prepared() -> None:
            os.environ["TMPDIR"] = str(self.temporary)
            tempfile.tempdir = None
            if setup is not None:
                setup()

        hooks.setup = prepared
        ended = finish(*start(self.root, self.kind, hooks, self.mark))
        if left := remaining(self.mark):
            self.miss(f"{len(left)} processes outlived the tuner")
        if "Traceback" in ended.said:
            self.miss(f"a traceback: {ended.said.strip().splitlines()[-1]}")
        return ended

    def disturbed(self, hooks: Hooks, codes: int | tuple[int, ...]) -> Tuner:
        """Run a tuner that is expected to end with a code, and to say how to go on if it can still speak."""
        ended = self.tuner(hooks)
        wanted = codes if isinstance(codes, tuple) else (codes,)
        if ended.code not in wanted:
            self.miss(
                f"exit code {ended.code} instead of {' or '.join(map(str, wanted))}: {ended.said.strip()[-200:]}"
            )
        elif ended.code > 2 and "autotune resume" not in ended.said:
            self.miss("does not say how to resume")
        return ended

    def ends_as(self, expected: Expected) -> None:
        """Resume to the end, and compare with the undisturbed run."""
        ended = self.tuner()
        if ended.code != 0:
            self.miss(f"the last resume exits with {ended.code}: {ended.said.strip()[-300:]}")
            return
        record = read_record(self.paths.journal)
        self._same_winner(Best.read(self.paths.best), record, expected)
        self.misses += repeated(record)
        files = files_of(self.root) ^ expected.files
        if self.kind == "real":  # how many proofs the winner takes is a question of speeds
            files = frozenset(name for name in files if "-proof/" not in name)
        if files:
            self.miss(f"files: {', '.join(sorted(files))}")
        if left := sorted({path.name for path in self.temporary.iterdir()} - expected.temporary):
            self.miss(f"left in TMPDIR: {', '.join(left[:3])}")
        with self.paths.lock.open("r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.miss("the lock is held")

    def _same_winner(self, best: Best, record: Record, expected: Expected) -> None:
        if not (best.proof and best.proof.passed):
            self.miss("the winner is not proven")
        if self.kind == "real":
            ratio = best.seconds_per_global_step / expected.best.seconds_per_global_step
            if not 1 / MARGIN <= ratio <= MARGIN:
                self.miss(f"the winner's global step takes {ratio:.2f} times the undisturbed one's")
        elif (best.candidate, best.seconds_per_global_step) != (
            expected.best.candidate,
            expected.best.seconds_per_global_step,
        ):
            self.miss(f"another winner: {title_of(best.candidate)}, micro-batch {best.candidate.micro_batch}")
        if trials_of(record) != expected.trials:
            self.miss(f"other trials: {trials_of(record)}")
        if record.unknown:
            self.miss(f"a hole in the search: {', '.join(entry.title for entry in record.unknown)}")


def trials_of(record: Record) -> tuple[tuple[str, str], ...]:
    """Return candidate and verdict of each trial."""
    return tuple((trial.candidate.key(), trial.outcome.kind) for trial in record.history)


def repeated(record: Record) -> list[str]:
    """Return what was done again although it had been finished."""
    found, done = [], set[tuple[str, ...]]()
    for entry in record.entries:
        work = _work(entry)
        if isinstance(entry, Started | RematchStarted | ProofStarted) and work in done:
            found.append(f"{' '.join(work)} after it was finished")
        if isinstance(entry, Finished | RematchFinished | ProofFinished) and not is_lost(entry):
            done.add(work)
    if sum(isinstance(entry, Inspected) for entry in record.entries) > 1:
        found.append("inspected twice")
    return found


def _work(entry: Entry) -> tuple[str, ...]:
    """Return what a line begins or ends: a probe or proof by its number, a rematch by its round besides."""
    match entry:
        case Started(number=number) | Finished(number=number):
            return "probe", str(number)
        case RematchStarted(number=number, round=round_) | RematchFinished(number=number, round=round_):
            return "rematch", str(number), "in round", str(round_)
        case ProofStarted(number=number) | ProofFinished(number=number):
            return "proof", str(number)
        case _:
            return ()


def files_of(root: Path) -> frozenset[str]:
    """Return the names of all files below a folder."""
    return frozenset(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def undisturbed(kind: Kind, folder: Path, predict: bool = True) -> Expected:
    """Run to the end without a disturbance."""
    trial = Trial(kind, folder, predict)
    ended = trial.tuner()
    assert ended.code == 0, ended.said
    assert not trial.misses, trial.misses
    record = read_record(trial.paths.journal)
    offsets = [0]
    for line in trial.paths.journal.read_bytes().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    return Expected(
        Best.read(trial.paths.best), trials_of(record), tuple(record.entries), tuple(offsets), files_of(trial.root),
        frozenset(path.name for path in trial.temporary.iterdir()),
    )  # fmt: skip


class NotAllowed(Exception):
    """This machine does not let its user mount anything."""


def apart(work: Callable[[], list[str]]) -> list[str]:
    """Do work in a process whose mounts nobody else sees, and return what it returns. Raises NotAllowed."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        said = "?the process died"
        try:
            _leave_mounts()
            said = "\n".join(work())
        except NotAllowed as error:
            said = f"!{error}"
        except BaseException:  # noqa: BLE001 - a fork must never return into the bench
            said = traceback.format_exc().replace("\n", " | ")
        finally:
            os.write(write, said.encode()[:60000])
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    if said.startswith("!"):
        raise NotAllowed(said[1:])
    return said.splitlines()


_libc = ctypes.CDLL(None, use_errno=True)
_NEWNS, _NEWUSER = 0x00020000, 0x10000000  # linux/sched.h
_READ_ONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 32, 4096, 16384, 1 << 18  # linux/mount.h


def _leave_mounts() -> None:
    flags = _NEWNS if os.geteuid() == 0 else _NEWNS | _NEWUSER
    _call(_libc.unshare, flags)
    mount("none", "/", None, _REC | _PRIVATE)


def mount(source: str, target: Path | str, kind: str | None, flags: int = 0, options: str = "") -> None:
    """Attach a file system, as the system call of that name does. Raises NotAllowed."""
    encoded = [None if text is None else str(text).encode() for text in (source, target, kind)]
    _call(_libc.mount, *encoded, ctypes.c_ulong(flags), options.encode())


def small_disk(folder: Path, pages: int) -> None:
    """Mount a file system in memory with room for so many pages."""
    folder.mkdir(parents=True, exist_ok=True)
    mount("tmpfs", folder, "tmpfs", 0, f"size={4 * pages}k")


def read_only(folder: Path) -> None:
    """Make a folder read-only for everyone, root too."""
    mount(str(folder), folder, None, _BIND)
    mount(str(folder), folder, None, _BIND | _REMOUNT | _READ_ONLY)


def fill(folder: Path, free: int = 0) -> Path:
    """Fill the file system of a folder but for so many bytes; return the file that takes the room."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass
    os.truncate(filler, max(0, filler.stat().st_size - free))
    return filler


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments) != 0:
        raise NotAllowed(os.strerror(ctypes.get_errno()))
