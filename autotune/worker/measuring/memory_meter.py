"""Read how much memory this process holds on the training device, and the most it ever held.

On CUDA the caching allocator keeps exact counts. On the CPU the kernel does: tensors are anonymous memory, so
anonymous memory beyond what interpreter and libraries took at the start is tensor memory. Files mapped for
offload are not anonymous, and rightly do not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from autotune.worker.measuring.process_memory import OwnMemory, free_data, give_back

PACKING = 10 * 2**20
"""Bytes that MKL takes for each thread to pack the matrices of a product, and keeps. They grow with the matrices: 5 to
10 MiB for GPT-2's with 1 and 2 threads (torch 2.13), so a small product at the start does not show them."""


class Lap(NamedTuple):
    """Tensor bytes on the device since the lap before."""

    end: int
    """Alive now."""
    peak: int
    """Most that was alive at a time during the lap."""


@dataclass(frozen=True)
class Peaks:
    """The most that the process ever held, in bytes, whatever the phase."""

    reserved: int
    device: int
    allocator_retries: int


class Meter(Protocol):
    """Memory of one device as this process uses it. All amounts in bytes."""

    baseline: int
    """What the process holds on the device before anything is built."""
    taken: int
    """What counts against the device's limit before anything is built, and what libraries will add to it."""
    asynchronous: bool
    """Whether the device runs behind the Python code."""

    def synchronize(self) -> None:
        """Wait until the device has done all that it was told."""
        ...

    def lap(self, detailed: bool = True) -> Lap:
        """Return the tensor bytes alive now and their peak since the last call, and begin the next lap.

        Not `detailed` it takes no time, and instead of what is alive it may tell as much as was at the peak, of this
        lap or one since the last detailed one.
        """
        ...

    def now(self) -> int:
        """Return the tensor bytes alive now."""
        ...

    def disown(self, tensors: int) -> None:
        """Leave what is held now beyond so many bytes of tensors out of laps from now on: a compiler's own, say."""
        ...

    def peaks(self) -> Peaks:
        """Return the peaks of the process's whole life so far."""
        ...

    def section(self) -> int:
        """Return the most that counted against the limit since the last call, and begin anew; ends a lap."""
        ...

    def free(self) -> int | None:
        """Return what could be allocated when memory was fullest of late; None where there is no limit."""
        ...

    def close(self) -> None:
        """Stop measuring."""
        ...


def meter_for(device: torch.device) -> Meter:
    """Return the meter of a device, with its baseline taken now."""
    return CudaMeter(device) if device.type == "cuda" else CpuMeter()


class CpuMeter:
    """Anonymous memory as the kernel counts it.

    `reserved` is what RLIMIT_DATA counts: private writable memory.
    """

    asynchronous = False

    def __init__(self) -> None:
        give_back()  # what imports and the first products freed: tensors take its place, and would not be seen
        self._memory = OwnMemory()
        now = self._memory.now()
        self.baseline = now.anonymous
        self.taken = now.data + PACKING * torch.get_num_threads()
        self._anonymous_peak = self._data_peak = 0
        self._disowned = self._section = 0

    def synchronize(self) -> None:
        """Do nothing: CPU operations are done when they return."""

    def lap(self, detailed: bool = True) -> Lap:
        """Return memory now and at its peak since the last lap, in bytes beyond the baseline, and begin anew."""
        if detailed:
            give_back()
        now, peak = self._memory.now(), self._memory.peak()
        self._anonymous_peak = max(self._anonymous_peak, peak.anonymous)
        self._data_peak = max(self._data_peak, peak.data)
        self._section = max(self._section, peak.anonymous, peak.data)
        self._memory.begin()
        return Lap(end=self._beyond(now.anonymous), peak=self._beyond(peak.anonymous))

    def now(self) -> int:
        """Return the bytes held now beyond the baseline."""
        give_back()
        return self._beyond(self._memory.now().anonymous)

    def disown(self, tensors: int) -> None:
        """Leave what is held now beyond `tensors` bytes out of laps from now on."""
        self._disowned = 0
        self._disowned = max(0, self.now() - tensors)

    def peaks(self) -> Peaks:
        """Return the peaks of the process's whole life so far, in bytes."""
        peak = self._memory.peak()
        return Peaks(
            reserved=max(self._data_peak, peak.data),
            device=max(self._anonymous_peak, peak.anonymous),
            allocator_retries=0,
        )

    def section(self) -> int:
        """Return the most that counted against the limit since the last call, in bytes, and begin anew."""
        self.lap()
        most, self._section = self._section, 0
        return most

    def free(self) -> int | None:
        """Return what the limit left at the peak of this lap: what failed has let go of its own memory since."""
        room = free_data()
        if room is None:
            return None
        return max(0, room - max(0, self._memory.peak().data - self._memory.now().data))

    def close(self) -> None:
        """Stop the sampling process."""
        self._memory.close()

    def _beyond(self, anonymous: int) -> int:
        return max(0, anonymous - self.baseline - self._disowned)


class CudaMeter:
    """The caching allocator's own counters; the device's by NVML, as the difference to before this process.

    Where NVML does not answer, the device's memory is what the driver calls used, other processes included,
    and the baseline is 0, as unknown.
    """

    asynchronous = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        before = self._nvml_used()
        torch.zeros(1, device=device)  # makes the context
        torch.cuda.synchronize(device)
        after = self._nvml_used()
        self._others = before if before is not None and after is not None else None
        self._reserved_peak = self._device_peak = self._section = 0
        self.baseline = 0
        if self._others is not None and after is not None:
            self.baseline = max(0, after - self._others - torch.cuda.memory_reserved(device))
        self.taken = self.baseline
        self.lap()

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it."""
        torch.cuda.synchronize(self._device)

    def lap(self, detailed: bool = True) -> Lap:  # noqa: ARG002 - counters take no time
        """Return the allocated bytes now and at their peak since the last lap, and begin anew."""
        stats = torch.cuda.memory_stats(self._device)
        used, reserved = self._device_used(), stats["reserved_bytes.all.peak"]
        self._reserved_peak = max(self._reserved_peak, reserved)
        self._device_peak = max(self._device_peak, used)
        self._section = max(self._section, used, self.baseline + reserved)
        torch.cuda.reset_peak_memory_stats(self._device)
        return Lap(end=stats["allocated_bytes.all.current"], peak=stats["allocated_bytes.all.peak"])

    def now(self) -> int:
        """Return the allocated bytes."""
        return int(torch.cuda.memory_allocated(self._device))

    def disown(self, tensors: int) -> None:
        """Do nothing: the allocator's counters know tensors alone."""

    def peaks(self) -> Peaks:
        """Return the peaks of the process's whole life so far, in bytes, with the allocator's retries."""
        stats = torch.cuda.memory_stats(self._device)
        reserved = max(self._reserved_peak, stats["reserved_bytes.all.peak"])
        return Peaks(
            reserved=reserved,
            # Sampled between laps only, so never below what the allocator is known to have held.
            device=max(self._device_peak, self._device_used(), self.baseline + reserved),
            allocator_retries=stats["num_alloc_retries"],
        )

    def section(self) -> int:
        """Return the most that the device held for this process since the last call, in bytes, and begin anew."""
        self.lap()
        most, self._section = self._section, 0
        return most

    def free(self) -> int | None:
        """Return the bytes that are free on the device."""
        return int(torch.cuda.mem_get_info(self._device)[0])

    def close(self) -> None:
        """Do nothing: the counters are the allocator's."""

    def _device_used(self) -> int:
        used = self._nvml_used() if self._others is not None else None
        if used is None or self._others is None:
            free, total = torch.cuda.mem_get_info(self._device)
            return int(total - free)
        return max(0, used - self._others)

    def _nvml_used(self) -> int | None:
        try:
            return int(torch.cuda.device_memory_used(self._device))
        except Exception:  # noqa: BLE001 - NVML is missing or refuses: a number less, not a failed probe
            return None
