"""Why a training cannot run although nothing is wrong with the program: typed, for the worker's verdict."""

from __future__ import annotations

from autotune.environment import how_to_install
from autotune.outcome import Cause

REFUSED_ON_HOST = ("DefaultCPUAllocator: ", "std::bad_alloc", "Cannot allocate memory")
"""torch's CPU allocator, C++'s own, and errno ENOMEM as torch prints it (mapping a file, for one)."""

PINNED_OR_GPU = "CUDA error: out of memory"
"""The CUDA runtime: pinned host memory that is refused, or, rarer, a context's or a kernel's own on the device.
Tensors on the device are refused by torch's allocator, with a type of its own."""


def refused_on_host(error: BaseException) -> bool:
    """Tell whether an error that an allocation of host memory raised, pinned or not, says that there is too little."""
    return any(sign in str(error) for sign in (*REFUSED_ON_HOST, PINNED_OR_GPU))


class CannotRun(Exception):
    """This machine or this model cannot run the candidate at all; the verdict is an `Unsupported` of these fields."""

    def __init__(self, axis: str | None, cause: Cause, reason: str) -> None:
        self.axis, self.cause, self.reason = axis, cause, reason
        super().__init__(reason)


class CannotTrace(Exception):
    """The model's code cannot run without data, or not twice alike; says where, and what to do."""


def lacking(axis: str, what: str, package: str, error: ImportError | None = None) -> CannotRun:
    """Return the refusal of a value of an axis, called `what`, whose package cannot be imported: how to install it."""
    failed = f" ({error})" if error else ""
    return CannotRun(axis, "package", f"{what} needs {package}{failed}: {how_to_install(package)}")


class DiskRefused(Exception):
    """A disk that had room, or was thought to, refused a write: the answer is `DiskFull`, and no verdict."""

    def __init__(self, path: str, needed: int, free: int, reason: str) -> None:
        self.path, self.needed, self.free, self.reason = path, needed, free, reason
        """Where how many bytes were to be written, how many were free then, and what the system said."""
        super().__init__(f"{path}: {needed} bytes were to be written with {free} free: {reason}")


class OutOfSpace(Exception):
    """Memory that offload or libraries need was refused; the verdict is `Oom(where, requested, free)`."""

    def __init__(self, where: str, requested: int, free: int | None, message: str) -> None:
        self.where = where
        """`device` (libraries), `host` (pinned memory), or `disk` (mapped files) where the candidate alone needs more
        than there was."""
        self.requested = requested
        """Bytes of the request that was refused."""
        self.free = free
        """Bytes that were free at that moment; None where unknown."""
        super().__init__(message)
