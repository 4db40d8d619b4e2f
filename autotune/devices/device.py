"""What autotune needs of a device: facts, how to run a process on it, and what that process took of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import Field

from autotune.candidate import Candidate, OffloadPlace
from autotune.errors import AutotuneError
from autotune.exit_codes import ExitCode
from autotune.validation import Frozen

PREPARE_TIMEOUT = 30.0
"""Seconds that a device gets to come back to its starting level between two probes."""


class DeviceBusy(AutotuneError):
    """Something else uses the device, so that nothing measured on it would mean anything."""

    exit_code = ExitCode.INPUT


class DeviceFacts(Frozen):
    """What a device is. Memory in bytes."""

    kind: Literal["cpu", "cuda"]
    """Whose kernels and rules hold."""
    simulated: bool = False
    """Nothing runs on it: what is said of it is predicted."""
    name: str
    """As the vendor calls it."""
    torch_name: str
    """What a worker calls it, under the device's own environment: `cpu` or `cuda:0`."""
    budget: Annotated[int, Field(gt=0)]
    """Bytes that a probe may take: the enforced limit (cpu), or what was free at the start (CUDA)."""
    total: Annotated[int, Field(gt=0)]
    """Bytes of the whole device: the machine's memory (cpu), or the GPU's."""
    driver: str | None = None
    """Version of the driver; None on the cpu."""
    hardware: str | None = None
    """Id in hardware.yaml; None for a device that the table does not know."""
    supports_bf16: bool
    """Whether the device itself computes in bf16."""
    supports_fp8: bool = False
    """Whether the device itself multiplies 8-bit floats."""
    peak_flops: dict[str, float] = Field(default_factory=dict)
    """Dense peak in FLOP/s by precision (`bf16`, `fp32`); empty where unknown, and then there is no MFU."""


class DeviceWatch(Protocol):
    """Looks on while a probe runs."""

    @property
    def peak(self) -> int | None:
        """Most bytes that the probe was seen to take of the device, or None where nobody but it can see that.

        Sampled: a shorter peak than the time between two samples can be missed, so it is a lower bound.
        """
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
