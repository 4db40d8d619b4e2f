"""From an exception to a verdict: what memory refused, what is not a number, what cannot run, what is a bug.

Imports no torch, because memory can run out while torch is being imported. Types come first; text is read
only where torch, oneDNN and the CUDA libraries raise a bare RuntimeError for what they know exactly.
"""

from __future__ import annotations

import errno
import re
import shutil
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.errors import AutotuneError, InputError
from autotune.outcome import Crash, NonFinite, Oom, Outcome, Phase, StressName, Unsupported
from autotune.probe.protocol import DiskFull
from autotune.worker.errors import PINNED_OR_GPU, REFUSED_ON_HOST

Where = Literal["device", "host"]

TRACEBACK_CHARACTERS = 16_000
"""Of a crash's traceback, the last ones are kept: a pipe message stays small."""

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""errno of a disk, a quota or a limit on files that takes no more."""

_CPU_REQUEST = re.compile(r"DefaultCPUAllocator: .*?tried to allocate (\d+) bytes")

_PIN_THREAD = "in pin memory thread"
"""torch's DataLoader names so the thread that failed."""

_REFUSED_ON_GPU = (
    "out of memory",  # the CUDA runtime, driver and NCCL, wherever it surfaces
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUSPARSE_STATUS_ALLOC_FAILED",
    "cudaErrorMemoryAllocation",
)

_REFUSED_IF_SHORT = (
    "could not create a primitive",  # oneDNN: no room for its kernel or its scratchpad, but also unsupported
    "could not execute a primitive",
    "could not create a memory object",
    "can't start new thread",  # no room for its stack
    "CUBLAS_STATUS_NOT_INITIALIZED",  # no room for a handle, the usual reason
    "CUDNN_STATUS_NOT_INITIALIZED",
    "unable to find an engine to execute this computation",  # cuDNN: none whose workspace fits
    "cannot allocate memory in static TLS block",
    "failed to map segment from shared object",
    "cannot map zero-fill pages",
)
"""Errors that have other causes too; they count as a refusal only where memory was short."""

_DISK_TEXT = ("No space left on device", "Disk quota exceeded", "File too large")
"""errno as torch prints it, where its C++ code writes a file itself."""
_WRITER_TEXT = "PytorchStreamWriter failed"
"""How torch's own writer of archives reports any failure, without errno."""
_CHANGED_IN_PLACE = "cached during selective activation checkpoint has been mutated"
ALMOST_NOTHING = 1 << 20
"""Bytes free on a disk, below which a write that failed without a reason is taken to have failed for that."""


@dataclass(frozen=True)
class Circumstances:
    """Where the probe was when it failed."""

    phase: Phase
    step: int
    device: Literal["cpu", "cuda"]
    free: int | None
    """Bytes that could still be allocated on the device; None where unknown or unlimited."""
    short: bool
    """Whether that is so little that an error which can mean lack of memory is taken to mean it."""
    requested: int | None = None
    """Bytes of the last request that the device's allocator refused, where it told them apart from its message."""
    free_at_refusal: int | None = None
    """Bytes that were free on the device at that moment."""
    stress: StressName | None = None
    """What a proof loaded memory with, where it came that far."""


def disk_full(error: BaseException, phase: Phase, folder: str) -> DiskFull | None:
    """Return the answer to an exception that a full disk raised; None where it is about something else.

    `folder` is where probes write, which is named where the exception names nothing. Typed errors and errno come first.
    Of torch's own writers only texts remain, of which the one that gives no reason needs a disk without room.
    """
    refusal = sys.modules.get("autotune.worker.errors")
    for cause in _chain(error):
        if refusal is not None and isinstance(cause, refusal.DiskRefused):
            return DiskFull(
                phase=phase, where=cause.path, needed=cause.needed, free=cause.free, message=cause.reason
            )
        text = str(cause)
        if isinstance(cause, OSError) and cause.errno is not None:
            if cause.errno not in DISK_FULL:
                continue
            where, text = str(cause.filename or folder), cause.strerror or text
        elif (isinstance(cause, RuntimeError | OSError) and any(sign in text for sign in _DISK_TEXT)) or (
            isinstance(cause, RuntimeError) and _WRITER_TEXT in text and (_free(folder) or 0) < ALMOST_NOTHING
        ):
            where = folder
        else:
            continue
        return DiskFull(phase=phase, where=where, free=_free(where), message=_first_line(text))
    return None


def _free(path: str) -> int | None:
    """Return the free bytes of the disk that holds a path; None where that cannot be told."""
    place = Path(path).absolute()
    for existing in (place, *place.parents):
        try:
            return shutil.disk_usage(existing).free
        except OSError:
            continue
    return None


def verdict(error: BaseException, at: Circumstances) -> Outcome:
    """Return what an exception that ended a probe means. Its causes count too: libraries wrap them."""
    for cause in _chain(error):
        outcome = _memory(cause, at) or _known(cause, at)
        if outcome is not None:
            return outcome
    if isinstance(error, InputError):  # a wrong option that only a worker can see: nothing crashed
        return Unsupported(reason=str(error))
    if isinstance(error, AutotuneError):  # written for people: its message is all there is to say
        return Crash(reason="exception", phase=at.phase, message=str(error))
    name = type(error).__name__
    return Crash(
        reason="exception",
        phase=at.phase,
        message=f"{name}: {error}" if str(error) else name,
        traceback="".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:],
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception, then what it was raised from, or during."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _known(error: BaseException, at: Circumstances) -> Outcome | None:
    """Recognize exceptions of this package, by their class's name where that class needs torch, and one of torch's."""
    refusal = sys.modules.get("autotune.worker.errors")
    steps = sys.modules.get("autotune.worker.measuring.steps")
    if refusal is not None and isinstance(error, refusal.CannotRun):
        return Unsupported(reason=error.reason, axis=error.axis, cause=error.cause)
    if steps is not None and isinstance(error, steps.NotFinite):
        return NonFinite(phase=at.phase, step=at.step, what=error.what)
    if isinstance(error, RuntimeError) and _CHANGED_IN_PLACE in str(error):
        reason = (
            "the model's code changes a matrix product in place (such as x += y), which checkpointing that keeps "
            "products would do twice; take full checkpointing, or write x = x + y"
        )
        return Unsupported(reason=reason, axis="checkpointing", cause="context")
    return None


def _memory(error: BaseException, at: Circumstances) -> Oom | None:
    refusal = sys.modules.get("autotune.worker.errors")
    if refusal is not None and isinstance(error, refusal.OutOfSpace):
        return Oom(
            where=error.where,
            phase=at.phase,
            requested=error.requested,
            free=error.free,
            message=str(error),
            stress=at.stress,
        )
    where = _where(error, at)
    if where is None:
        return None
    text = str(error)
    request = _CPU_REQUEST.search(text)
    on_device = where == "device"
    # An earlier refusal of the allocator may have been survived: what it asked for is of no other error.
    by_allocator = on_device and _is_gpu_oom(error)
    requested = int(request[1]) if request else at.requested if by_allocator else None
    free = at.free if on_device else None
    if by_allocator and at.free_at_refusal is not None:
        free = at.free_at_refusal
    if free is not None and requested is not None:
        # Less was free, or it would have been granted; the operation that failed has let go of its own since.
        free = min(free, requested)
    return Oom(
        where=where,
        phase=at.phase,
        requested=requested,
        free=free,
        message=_first_line(text) or type(error).__name__,
        stress=at.stress,
    )


def _where(error: BaseException, at: Circumstances) -> Where | None:
    """Return which memory refused, or None where the exception is about something else."""
    host: Where = "device" if at.device == "cpu" else "host"  # the cpu device is the host
    if isinstance(error, MemoryError):
        return host
    if isinstance(error, SystemError):  # CPython loses the MemoryError now and then, while it imports
        return host if at.short else None
    if isinstance(error, OSError) and error.errno is not None:
        return host if error.errno == errno.ENOMEM else None
    if _is_gpu_oom(error):
        return "device"
    if not isinstance(error, RuntimeError | ImportError | OSError):
        return None
    text = str(error)
    if any(sign in text for sign in REFUSED_ON_HOST):
        return host
    if at.device == "cuda" and PINNED_OR_GPU in text:
        roomy = at.free is not None and not at.short
        return "host" if roomy or _PIN_THREAD in text else "device"
    if at.device == "cuda" and any(sign in text for sign in _REFUSED_ON_GPU):
        return "device"
    if at.short and any(sign in text for sign in _REFUSED_IF_SHORT):
        return "device"
    return None


def _is_gpu_oom(error: BaseException) -> bool:
    gpu_oom = getattr(sys.modules.get("torch"), "OutOfMemoryError", None)
    return gpu_oom is not None and isinstance(error, gpu_oom)


def _first_line(text: str) -> str:
    """Return the message without the stack of C++ frames that torch may add."""
    return text.strip().partition("\n")[0][:500]
