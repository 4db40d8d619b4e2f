"""Memory of this process as the kernel counts it, in bytes. Imports no torch. Linux only."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from autotune.worker.measuring.memory_sampler import BOARD_BYTES, LAP, PEAKS

_PAGE = os.sysconf("SC_PAGE_SIZE")
_RESET_PEAK = b"5"  # proc_pid_clear_refs(5)
_allocators_own = getattr(ctypes.CDLL(None), "autotune_give_back", None)


class ProcessMemory(NamedTuple):
    """What a process holds, in bytes, as proc_pid_statm(5) has it.

    Memory that it shares with a mapped file is in `mapped` alone.
    """

    anonymous: int
    """Resident pages that belong to no file."""
    data: int
    """Private writable memory, touched or not: what RLIMIT_DATA counts."""
    mapped: int
    """Resident pages of mapped files, libraries included."""


class OwnMemory:
    """This process's memory: now, and its peaks since the last `begin`.

    Peaks come from two sources. The kernel keeps an exact peak of all resident memory; less the most that
    mapped files took, it is a lower bound of the anonymous peak, and exact while mapped files hold still (no
    offload). A sampler process adds what it saw, which is what counts while mapped files come and go. Private
    data has no peak in the kernel: it is what the sampler saw, and no less than the anonymous peak plus what
    is mapped but untouched.
    """

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        self._reset = _open_reset()
        descriptor = os.memfd_create("autotune-memory")
        os.ftruncate(descriptor, BOARD_BYTES)
        self._board = mmap.mmap(descriptor, BOARD_BYTES)
        script = Path(__file__).with_name("memory_sampler.py")
        self._sampler = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), str(os.getpid()), str(descriptor)],
            pass_fds=(descriptor,), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(descriptor)
        self._lap = 0
        self._first = self.now()
        self.begin()

    def now(self) -> ProcessMemory:
        """Return what the process holds now."""
        fields = os.pread(self._statm, 256, 0).split()
        resident, mapped, data = (int(fields[index]) * _PAGE for index in (1, 2, 5))
        return ProcessMemory(resident - mapped, data, mapped)

    def peak(self) -> ProcessMemory:
        """Return the peaks since the last `begin`, each for itself."""
        first, last = self._first, self.now()
        lap, *pages = PEAKS.unpack_from(self._board, LAP.size)
        seen = ProcessMemory(*(count * _PAGE for count in pages)) if lap == self._lap else last
        mapped = max(first.mapped, last.mapped, seen.mapped)
        anonymous = max(first.anonymous, last.anonymous, seen.anonymous)
        if self._reset is not None:
            anonymous = max(anonymous, self._resident_peak() - mapped)
        untouched = min(first.data - first.anonymous, last.data - last.anonymous)
        return ProcessMemory(anonymous, max(first.data, last.data, seen.data, anonymous + untouched), mapped)

    def begin(self) -> None:
        """Begin a new lap: peaks count from here, and include what the allocator keeps (`give_back`)."""
        self._lap += 1
        LAP.pack_into(self._board, 0, self._lap)
        if self._reset is not None:
            os.pwrite(self._reset, _RESET_PEAK, 0)
        self._first = self.now()

    def close(self) -> None:
        """End the sampler."""
        self._sampler.kill()
        self._sampler.wait()
        for descriptor in (self._statm, self._status, self._reset):
            if descriptor is not None:
                os.close(descriptor)

    def _resident_peak(self) -> int:
        status = os.pread(self._status, 4096, 0)
        start = status.index(b"VmHWM:") + len(b"VmHWM:")
        return int(status[start : start + 32].split()[0]) * 1024


def give_back() -> None:
    """Give back the memory that the allocator keeps for later, where it does (`devices/allocator.c`).

    Without that the process is as large as it was at its peak since this was last called, and no larger.
    """
    if _allocators_own is not None:
        _allocators_own()


def free_data() -> int | None:
    """Return what RLIMIT_DATA leaves to this process, with all given back; None where there is no limit."""
    limit = data_limit()
    return None if limit is None else max(0, limit - own_data())


def data_limit() -> int | None:
    """Return the bytes of private writable memory that this process may have; None where there is no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if limit == resource.RLIM_INFINITY else limit


@contextmanager
def limit_lifted() -> Iterator[None]:
    """Lift RLIMIT_DATA meanwhile, as far as this process may: for what is no part of the training that it limits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def own_data() -> int:
    """Return the private writable memory of this process, with all given back: what RLIMIT_DATA counts."""
    give_back()
    return int(Path("/proc/self/statm").read_bytes().split()[5]) * _PAGE


def _open_reset() -> int | None:
    """Open what resets the kernel's peak; None where the kernel does not let us."""
    try:
        descriptor = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.pwrite(descriptor, _RESET_PEAK, 0)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
