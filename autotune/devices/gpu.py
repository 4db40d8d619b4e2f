"""A GPU as a device, seen through its vendor's monitor: the tuner never holds a context on it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from autotune.candidate import Candidate, OffloadPlace, allocator_options
from autotune.devices.device import PREPARE_TIMEOUT, DeviceBusy, UnusableDevice
from autotune.devices.hardware import lookup
from autotune.devices.host import available_memory, free_disk
from autotune.devices.monitor.monitor import Gpu, Monitor, MonitorError
from autotune.memory.device_overhead import CUDA_CONTEXT
from autotune.specs import DeviceFacts
from autotune.units import MIB, format_bytes

SLACK = 64 * MIB
"""How far above the starting level the device counts as free: drivers round and cache."""
DRIFT = 512 * MIB
"""How far above the first level a driver may settle: what it keeps behind a first context. Assumed."""
STILL = 2.0
"""Seconds for which a level has to stand still to be the new one."""
STEADY = 4 * MIB
"""By how much a level that stands still may move."""
IDLE_SHARE = 1 / 32
IDLE_LEAST = 1024 * MIB
"""Below this share of its memory, or these bytes where they are more, a GPU holds its driver's reserve and at most an
idle context: processes that nobody here knows compute nothing there. Assumed."""
_JOIN = 5.0
"""Seconds that a question to the driver may take: one that hangs may not keep the verdict."""
_TICK = 0.02
_POLL = 0.1


class CudaDevice:
    """One whole GPU. Its budget is what is free when this object is made."""

    def __init__(self, gpu: Gpu, monitor: Monitor, number: int = 0) -> None:
        """Raise UnusableDevice for a GPU that is split, and DeviceBusy when another process computes on it.

        `number` is N of `--device cuda:N`.
        """
        if gpu.split:
            raise UnusableDevice(
                f"GPU {gpu.index} ({gpu.name}) {gpu.split}, or choose another with --device cuda:N", "split"
            )
        self._gpu = gpu
        self._monitor = monitor
        self._number = number
        self._take_level()
        self._facts = self._find_facts()

    def _take_level(self) -> None:
        """Take the present use of the GPU as its starting level. Raises DeviceBusy when somebody computes."""
        here, elsewhere = self._processes()
        memory = self._monitor.memory(self._gpu.uuid)
        if here or (elsewhere and memory.used > max(IDLE_LEAST, IDLE_SHARE * memory.total)):
            raise DeviceBusy(self._busy(here + elsewhere), here + elsewhere)
        self._first = self._start = memory.used
        self._free, self._total = memory.free, memory.total

    def _processes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the processes that compute on the GPU: those that this machine knows, and numbers that it does not.

        In a container the driver counts as outside of it, and may name what has ended, or the worker that this one
        started. The level of memory says whether such a process holds anything.
        """
        found = self._monitor.processes(self._gpu.uuid)
        here = tuple(process for process in found if psutil.pid_exists(process))
        return here, tuple(process for process in found if process not in here)

    def facts(self) -> DeviceFacts:
        """Return what the GPU is."""
        return self._facts

    def minimum(self) -> int:
        """Return what a CUDA context takes."""
        return CUDA_CONTEXT

    def environment(self, candidate: Candidate) -> dict[str, str]:
        """Return the variables that show the worker this GPU alone, as `cuda:0`, and set up its allocator."""
        allocator = allocator_options(own_options(os.environ), candidate)
        return {
            "CUDA_VISIBLE_DEVICES": self._gpu.uuid,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "PYTORCH_ALLOC_CONF": allocator,
            "PYTORCH_CUDA_ALLOC_CONF": allocator,  # the name until torch 2.9, still read where the other is unset
        }

    def data_limit(self) -> int | None:
        """Return None: the GPU's memory limits itself."""
        return None

    def prepare(self, timeout: float = PREPARE_TIMEOUT) -> None:
        """Wait until nobody computes on the GPU and its memory is back at the starting level.

        A driver may keep more than at first once there was a context: a level near the first one that stands still,
        with no process behind it, is the new one. Peaks are counted from the level that was found here.
        """
        began = still_since = time.monotonic()
        still: int | None = None
        while True:
            here, elsewhere = self._processes()
            used = self._monitor.memory(self._gpu.uuid).used
            now, above = time.monotonic(), used - self._first
            if still is None or abs(used - still) > STEADY:
                still, still_since = used, now
            settled = not elsewhere and above <= DRIFT and now - still_since >= STILL
            if not here and (above <= SLACK or settled):
                self._start = used
                return
            if now - began >= timeout:
                raise DeviceBusy(self._busy(here + elsewhere, above), here + elsewhere, above)
            time.sleep(min(_POLL, timeout))

    @contextmanager
    def watch(self) -> Iterator[_Sampler]:
        """Sample the GPU's memory every 20 ms in a thread."""
        sampler = _Sampler(self._monitor, self._gpu.uuid, self._start)
        sampler.start()
        try:
            yield sampler
        finally:
            sampler.stop()

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:
        """Return the host memory that can be taken (and pinned) now, or the free bytes of the disk."""
        return available_memory() if place == "host" else free_disk(folder)

    def _find_facts(self) -> DeviceFacts:
        row = lookup(self._gpu.name)
        lacks_energy = ""
        try:
            self._monitor.joules(self._gpu.uuid)
        except MonitorError as error:
            lacks_energy = str(error)
        return DeviceFacts(
            kind="cuda", name=self._gpu.name, torch_name="cuda:0", number=self._number,
            budget=self._free, total=self._total,
            driver=self._monitor.driver(), hardware=row.id if row else None,
            dtypes=self._gpu.dtypes,
            peak_flops=row.peak_flops() if row else {},
            energy_counter=None if lacks_energy else self._monitor.counter, lacks_energy=lacks_energy,
        )  # fmt: skip

    def _busy(self, others: tuple[int, ...], above: int = 0) -> str:
        where = f"GPU {self._gpu.index} ({self._gpu.name})"
        if others:
            names = ", ".join(f"{_process_name(pid)} (process {pid})" for pid in others)
            return f"{where} is used by {names}; end it, or choose another GPU with --device cuda:N"
        return (
            f"{where} holds {format_bytes(above)} more than at the start, and {self._monitor.library} names no process "
            "that does; see what holds it, or choose another GPU with --device cuda:N"
        )


class _Sampler(threading.Thread):
    """Keeps the most memory that was in use above the starting level."""

    def __init__(self, monitor: Monitor, uuid: str, start: int) -> None:
        super().__init__(name="gpu-memory", daemon=True)
        self._rises: list[tuple[float, int]] = []
        self._monitor, self._uuid, self._from = monitor, uuid, start
        self._ended = threading.Event()

    @property
    def peak(self) -> int | None:
        """The most of all samples; None without any."""
        return self.peak_until(None)

    def peak_until(self, moment: float | None) -> int | None:
        """Return the most of the samples up to a moment of `time.monotonic`; None without any."""
        until = [used for at, used in self._rises if moment is None or at <= moment]
        return until[-1] if until else None

    def run(self) -> None:
        while True:
            try:
                used = self._monitor.memory(self._uuid).used - self._from
            except MonitorError:
                return  # a peak is worth having, but not worth losing the probe for
            # The time after the reading: a sample that straddles a moment is none of those before it.
            if not self._rises or used > self._rises[-1][1]:
                self._rises.append((time.monotonic(), max(0, used)))
            if self._ended.wait(_TICK):
                return

    def stop(self) -> None:
        self._ended.set()
        self.join(_JOIN)


def visible_gpus(gpus: tuple[Gpu, ...], variables: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; all of them where it is not set.

    Numbers count in PCI order, as monitors and schedulers do (CUDA itself may put the fastest first). Like CUDA
    this stops at the first entry that names no GPU. Raises InputError for an instance of MIG.
    """
    setting = variables.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return gpus
    found: list[Gpu] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.upper().startswith("MIG"):
            raise UnusableDevice(
                f"CUDA_VISIBLE_DEVICES={setting} names an instance of a split GPU (MIG), which cannot be "
                "measured from outside; give a whole GPU",
                "split",
            )
        if entry.isdigit():
            match = [gpu for gpu in gpus if gpu.index == int(entry)]
        else:
            match = [gpu for gpu in gpus if entry and gpu.uuid.lower().startswith(entry.lower())]
        if len(match) != 1:
            break
        found += match
    return tuple(found)


def own_options(variables: Mapping[str, str]) -> str:
    """Return the options of the allocator that the user's own environment sets."""
    return variables.get("PYTORCH_ALLOC_CONF") or variables.get("PYTORCH_CUDA_ALLOC_CONF") or ""


def _process_name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "a process outside of this container or of another user"
