"""Which vendor's library is asked of this machine's GPUs."""

from __future__ import annotations

from pathlib import Path

from autotune.devices.monitor.monitor import Monitor, NoGpu
from autotune.devices.monitor.nvml import NvmlLibrary

AMD_DRIVER = Path("/dev/kfd")
"""What AMD's driver for computing makes (Documentation/gpu/amdgpu of the kernel; ROCm opens it)."""


def open_monitor() -> Monitor:
    """Return what answers for this machine's GPUs: NVIDIA's library, the only one so far.

    Raises NoGpu where there is no library or no driver, MonitorError where they do not work.
    """
    try:
        return NvmlLibrary()
    except NoGpu as error:
        if AMD_DRIVER.exists():
            raise NoGpu(
                f"{error.reason}; {AMD_DRIVER} says that there is one of AMD's, which nothing here can ask yet"
            ) from None
        raise
