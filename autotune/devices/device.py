"""What autotune needs of a device: facts, how to run a process on it, and what that process took of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol

from autotune.candidate import Candidate, OffloadPlace
from autotune.errors import AutotuneError, InputError
from autotune.exit_codes import ExitCode
from autotune.specs import DeviceFacts

PREPARE_TIMEOUT = 30.0
"""Seconds that a device gets to come back to its starting level between two probes."""


class DeviceBusy(AutotuneError):
    """Something else uses the device, so that nothing measured on it would mean anything."""

    exit_code = ExitCode.INPUT

    def __init__(self, message: str, processes: tuple[int, ...], above: int = 0) -> None:
        self.processes = processes
        """Numbers of those that compute on it."""
        self.above = above
        """Bytes that are taken beyond the starting level."""
        super().__init__(message)


class UnusableDevice(InputError):
    """The device that was asked for is not there, cannot be measured, or cannot be given the budget."""

    def __init__(
        self, message: str, why: Literal["missing", "hidden", "split", "too much", "too little"]
    ) -> None:
        self.why = why
        """`hidden` by CUDA_VISIBLE_DEVICES, `split` by MIG; the budget is more or less than it takes."""
        super().__init__(message, about="device")


class DeviceWatch(Protocol):
    """Looks on while a probe runs."""

    @property
    def peak(self) -> int | None:
        """Most bytes that the probe was seen to take of the device, or None where nobody but it can see that.

        Sampled: a shorter peak than the time between two samples can be missed, so it is a lower bound.
        """
        ...

    def peak_until(self, moment: float | None) -> int | None:
        """Return the peak up to a moment of `time.monotonic`; the whole one's for None."""
        ...


class Device(Protocol):
    """One device of this machine, as the tuner sees it: from outside, without a context on it."""

    def facts(self) -> DeviceFacts:
        """Return what the device is; the same at every call."""
        ...

    def minimum(self) -> int:
        """Return the bytes that the framework takes before any model; no budget below it can work."""
        ...

    def environment(self, candidate: Candidate) -> dict[str, str]:
        """Return the variables that a worker needs to run this candidate on this device, and on no other."""
        ...

    def data_limit(self) -> int | None:
        """Return the RLIMIT_DATA (bytes) that makes the kernel enforce the budget, or None."""
        ...

    def prepare(self, timeout: float = PREPARE_TIMEOUT) -> None:
        """Wait until the device is as free as it was at the start. Raises DeviceBusy, naming who uses it."""
        ...

    def watch(self) -> AbstractContextManager[DeviceWatch]:
        """Return a context manager that watches the device's memory while it is open."""
        ...

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:
        """Return the bytes that offloading may use of host memory, or of the disk that holds `folder`.

        The folder need not exist yet. On a file system in memory (tmpfs) a disk's bytes are bytes of memory.
        """
        ...
