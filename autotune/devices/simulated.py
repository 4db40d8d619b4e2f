"""A GPU that is not there: its row of hardware.yaml as a device. Nothing runs on it; predictions stand for probes."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.candidate import Candidate, OffloadPlace, allocator_options
from autotune.devices.gpu import own_options
from autotune.devices.hardware import Hardware
from autotune.devices.unused import UnusedDevice
from autotune.memory.device_overhead import CUDA_CONTEXT
from autotune.specs import DeviceFacts
from autotune.units import GIB

HOST_MEMORY = 128 * GIB
"""Host memory that one GPU's offload may use, in bytes: assumed. Servers have 144 GiB for each GPU (AWS p4d: 1152 GiB
for 8 A100) and more."""
DISK = 3840 * 10**9
"""Bytes of disk that one GPU's offload may use: assumed, as an NVIDIA DGX H100 has it (data sheet: 8 x 3.84 TB NVMe for
8 GPUs)."""


class SimulatedDevice(UnusedDevice):
    """One whole GPU of the table, with nobody else on it."""

    def __init__(self, row: Hardware) -> None:
        self.hardware = row
        self._facts = DeviceFacts(
            kind="cuda", simulated=True, name=f"{_name(row)} (simulated)", torch_name="cuda:0",
            budget=row.usable_bytes(), total=row.usable_bytes(), hardware=row.id,
            dtypes=tuple(
                name for name, peak in (("bf16", row.bf16_tflops), ("fp8", row.fp8_tflops)) if peak is not None
            ),
            peak_flops=row.peak_flops(),
            lacks_energy="a simulated GPU takes none, and how much a real one takes is not predicted",
        )  # fmt: skip

    def facts(self) -> DeviceFacts:
        """Return what the GPU would be; all of its memory is free."""
        return self._facts

    def minimum(self) -> int:
        """Return what a CUDA context takes."""
        return CUDA_CONTEXT

    def environment(self, candidate: Candidate) -> dict[str, str]:
        """Return the allocator's options as on a real GPU; a GPU of this machine stays hidden."""
        allocator = allocator_options(own_options(os.environ), candidate)
        return {
            "CUDA_VISIBLE_DEVICES": "", "PYTORCH_ALLOC_CONF": allocator, "PYTORCH_CUDA_ALLOC_CONF": allocator,
        }  # fmt: skip

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:  # noqa: ARG002  it has no folder
        """Return the host memory or the disk that is assumed beside the GPU."""
        return HOST_MEMORY if place == "host" else DISK


def _name(row: Hardware) -> str:
    name = row.names[0]
    return name if row.vendor != "nvidia" else f"NVIDIA {name}"
