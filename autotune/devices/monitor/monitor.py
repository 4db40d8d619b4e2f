"""What is asked of a GPU without a context on it, whatever its vendor: all that a further one has to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autotune.errors import AutotuneError
from autotune.outcome import EnergyCounter


class MonitorError(AutotuneError):
    """There is a driver, but it refuses to answer: this machine's fault, which is to be mended."""


class NoGpu(MonitorError):
    """No GPU is there for this process: no library, no driver that is loaded, none listed, or all hidden from it."""

    def __init__(self, reason: str, hidden: bool = False) -> None:
        self.reason, self.hidden = reason, hidden
        """Why; and whether there are some that a variable hides."""
        super().__init__(f"no GPU found: {reason}")


class NoEnergyCounter(MonitorError):
    """The GPU does not count the energy that it takes."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as its vendor's library lists it, in the order of its PCI address."""

    index: int
    uuid: str
    """Names the same device to the libraries that compute on it, whatever the order there."""
    name: str
    dtypes: tuple[str, ...]
    """Number types beyond fp32 and fp16 that it computes in: `bf16`, `fp8`."""
    split: str = ""
    """Why the whole cannot be used, and what to do about that: it is split into instances. Empty where it can."""


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of a GPU. `free` is what new processes can get: the driver's own reserve is not in it."""

    total: int
    free: int

    @property
    def used(self) -> int:
        """The level: everything that is not free, the driver's reserve included."""
        return self.total - self.free


class Monitor(Protocol):
    """The few questions that autotune asks of a vendor's library. Every one may raise MonitorError."""

    library: str
    """What the library is called, for people: `NVML`."""
    counter: EnergyCounter
    """What a record calls its counter of energy."""

    def driver(self) -> str:
        """Return the driver's version."""
        ...

    def gpus(self) -> tuple[Gpu, ...]:
        """Return all GPUs that this process may see, in PCI order."""
        ...

    def memory(self, uuid: str) -> MemoryUse:
        """Return the memory of a GPU now."""
        ...

    def joules(self, uuid: str) -> float:
        """Return the energy that a GPU took since its driver was loaded. Raises NoEnergyCounter where none counts it.

        Drivers bring the counter up to date only now and then.
        """
        ...

    def processes(self, uuid: str) -> tuple[int, ...]:
        """Return the ids of the processes that compute on a GPU.

        In a container these may be numbers outside of it, or none at all; none are returned where the library does not
        answer that.
        """
        ...
