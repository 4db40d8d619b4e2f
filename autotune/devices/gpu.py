"""An NVIDIA GPU as a device, seen through NVML: the tuner never holds a context on it."""

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
from autotune.devices.monitor.nvml import Gpu, Nvml, NvmlError
from autotune.memory.predictor import CUDA_CONTEXT
from autotune.specs import DeviceFacts
from autotune.units import MIB, format_bytes

SLACK = 64 * MIB
"""How far above the starting level the device counts as free: drivers round and cache."""
FIRST_WITH = {"bf16": (8, 0), "fp8": (8, 9)}
"""Compute capability from which tensor cores know a number type: bf16 came with Ampere, 8-bit floats with Ada."""
_TICK = 0.02
_POLL = 0.1


class CudaDevice:
    """One whole GPU. Its budget is what is free when this object is made."""

    def __init__(self, gpu: Gpu, nvml: Nvml) -> None:
        """Raise UnusableDevice for a GPU that is split by MIG, and DeviceBusy when another process computes on it."""
        if gpu.mig:
            raise UnusableDevice(
                f"GPU {gpu.index} ({gpu.name}) is split into MIG instances, which cannot be measured from outside; "
                f"turn that off (nvidia-smi -i {gpu.index} -mig 0), or choose another with --device cuda:N",
                "split",
            )
        self._gpu = gpu
        self._nvml = nvml
        self._take_level()
        self._facts = self._find_facts()

    def _take_level(self) -> None:
        """Take the present use of the GPU as its starting level. Raises DeviceBusy when somebody computes."""
        if others := self._nvml.processes(self._gpu.uuid):
            raise DeviceBusy(self._busy(others), others)
        memory = self._nvml.memory(self._gpu.uuid)
        self._start, self._free, self._total = memory.used, memory.free, memory.total

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
        """Wait until nobody computes on the GPU and its memory is back at the starting level."""
        until = time.monotonic() + timeout
        while True:
            others = self._nvml.processes(self._gpu.uuid)
            above = self._nvml.memory(self._gpu.uuid).used - self._start
            if not others and above <= SLACK:
                return
            if time.monotonic() >= until:
                raise DeviceBusy(self._busy(others, above), others, above)
            time.sleep(min(_POLL, timeout))

    @contextmanager
    def watch(self) -> Iterator[_Sampler]:
        """Sample the GPU's memory every 20 ms in a thread."""
        sampler = _Sampler(self._nvml, self._gpu.uuid, self._start)
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
            self._nvml.joules(self._gpu.uuid)
        except NvmlError as error:
            lacks_energy = str(error)
        return DeviceFacts(
            kind="cuda", name=self._gpu.name, torch_name="cuda:0", budget=self._free, total=self._total,
            driver=self._nvml.driver(), hardware=row.id if row else None,
            dtypes=tuple(name for name, first in FIRST_WITH.items() if self._gpu.capability >= first),
            peak_flops=row.peak_flops() if row else {},
            energy_counter=None if lacks_energy else "nvml", lacks_energy=lacks_energy,
        )  # fmt: skip

    def _busy(self, others: tuple[int, ...], above: int = 0) -> str:
        where = f"GPU {self._gpu.index} ({self._gpu.name})"
        if others:
            names = ", ".join(f"{_process_name(pid)} (process {pid})" for pid in others)
            return f"{where} is used by {names}; end it, or choose another GPU with --device cuda:N"
        return (
            f"{where} holds {format_bytes(above)} more than at the start, and NVML names no process that does; "
            "see nvidia-smi, or choose another GPU with --device cuda:N"
        )


class _Sampler(threading.Thread):
    """Keeps the most memory that was in use above the starting level."""

    def __init__(self, nvml: Nvml, uuid: str, start: int) -> None:
        super().__init__(name="gpu-memory", daemon=True)
        self._rises: list[tuple[float, int]] = []
        self._nvml, self._uuid, self._from = nvml, uuid, start
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
                used = self._nvml.memory(self._uuid).used - self._from
            except NvmlError:
                return  # a peak is worth having, but not worth losing the probe for
            # The time after the reading: a sample that straddles a moment is none of those before it.
            if not self._rises or used > self._rises[-1][1]:
                self._rises.append((time.monotonic(), max(0, used)))
            if self._ended.wait(_TICK):
                return

    def stop(self) -> None:
        self._ended.set()
        self.join()


def visible_gpus(gpus: tuple[Gpu, ...], variables: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; all of them where it is not set.

    Numbers count in PCI order, as NVML and schedulers do (CUDA itself may put the fastest first). Like CUDA
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
