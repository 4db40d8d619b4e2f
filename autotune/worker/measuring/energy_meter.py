"""The counter of energy that a worker reads around the parts of its steps."""

from __future__ import annotations

import os
from functools import partial
from typing import Protocol

import torch

from autotune.devices.monitor.find import open_monitor
from autotune.devices.monitor.monitor import Monitor
from autotune.devices.monitor.rapl import Rapl
from autotune.outcome import EnergyCounter


class EnergyMeter(Protocol):
    """Counts joules from any moment on: differences alone mean something."""

    @property
    def counter(self) -> EnergyCounter:
        """What counts."""
        ...

    def joules(self) -> float:
        """Return the energy so far."""
        ...


class GpuEnergy:
    """One GPU, by its vendor's monitor: whatever runs on it, which is the probe alone."""

    def __init__(self, monitor: Monitor, uuid: str) -> None:
        """Raise MonitorError where the GPU cannot be asked."""
        self.counter: EnergyCounter = monitor.counter
        self.joules = partial(monitor.joules, uuid)
        self.joules()


class ProcessorEnergy(Rapl):
    """This machine's processors: whatever runs on them, other ranks and other programs too."""

    counter: EnergyCounter = "rapl"


def energy_meter(device: torch.device) -> EnergyMeter:
    """Return the counter of a worker's device. Raises MonitorError or RaplError where it cannot be read."""
    if device.type != "cuda":
        return ProcessorEnergy()
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    uuid = shown if shown.startswith("GPU-") else f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    return GpuEnergy(open_monitor(), uuid)
