"""NVIDIA's management library: what is known of a GPU without a context on it."""

from __future__ import annotations

from typing import Any

from autotune.devices.monitor.monitor import Gpu, MemoryUse, MonitorError, NoEnergyCounter, NoGpu
from autotune.environment import how_to_install
from autotune.outcome import EnergyCounter

FIRST_WITH = {"bf16": (8, 0), "fp8": (8, 9)}
"""Compute capability from which tensor cores know a number type: bf16 came with Ampere, 8-bit floats with Ada."""


class NvmlLibrary:
    """NVML itself, through `pynvml`.

    It is opened once and kept open: that keeps the driver loaded, and so the starting level of memory steady. It is no
    CUDA context.
    """

    library = "NVML"
    counter: EnergyCounter = "nvml"

    def __init__(self) -> None:
        """Raise NoGpu where there is no library or no driver, MonitorError where they do not work."""
        try:
            import pynvml
        except ImportError:
            raise MonitorError(
                "the package nvidia-ml-py is not installed, so no GPU can be looked for: "
                + how_to_install("nvidia-ml-py")
            ) from None
        self._api: Any = pynvml
        self._handles: dict[str, Any] = {}
        self._ask("nvmlInit")

    def driver(self) -> str:
        """Return the driver's version."""
        return str(self._ask("nvmlSystemGetDriverVersion"))

    def gpus(self) -> tuple[Gpu, ...]:
        """Return all GPUs that this process may see, in PCI order."""
        return tuple(self._gpu(index) for index in range(self._ask("nvmlDeviceGetCount")))

    def memory(self, uuid: str) -> MemoryUse:
        """Return the memory of a GPU now."""
        info = self._ask("nvmlDeviceGetMemoryInfo", self._handle(uuid))
        return MemoryUse(total=int(info.total), free=int(info.free))

    def joules(self, uuid: str) -> float:
        """Return the joules of a GPU since its driver was loaded. Raises NoEnergyCounter where none counts them."""
        try:
            return float(self._api.nvmlDeviceGetTotalEnergyConsumption(self._handle(uuid))) / 1000
        except self._api.NVMLError_NotSupported:
            raise NoEnergyCounter(
                "NVML has no counter of energy for this GPU, as for none before Volta"
            ) from None
        except (self._api.NVMLError, self._api.NVMLLibraryMismatchError) as error:
            raise NoEnergyCounter(
                f"NVML does not tell the energy of this GPU: it says {str(error)!r}"
            ) from None

    def processes(self, uuid: str) -> tuple[int, ...]:
        """Return the ids of the processes that compute on a GPU."""
        try:
            found = self._api.nvmlDeviceGetComputeRunningProcesses(self._handle(uuid))
        except (self._api.NVMLError, self._api.NVMLLibraryMismatchError):
            # Not supported under WSL, not permitted or unknown in containers, not found in old drivers:
            # then the level of memory alone says whether the GPU is free.
            return ()
        return tuple(int(process.pid) for process in found)

    def _gpu(self, index: int) -> Gpu:
        handle = self._ask("nvmlDeviceGetHandleByIndex", index)
        try:
            mig = self._api.nvmlDeviceGetMigMode(handle)[0] == self._api.NVML_DEVICE_MIG_ENABLE
        except self._api.NVMLError:
            mig = False  # "not supported": most GPUs cannot be split
        capability = tuple(self._ask("nvmlDeviceGetCudaComputeCapability", handle))
        split = (
            "is split into MIG instances, which cannot be measured from outside; turn that off "
            f"(nvidia-smi -i {index} -mig 0)"
        )
        return Gpu(
            index=index,
            uuid=str(self._ask("nvmlDeviceGetUUID", handle)),
            name=str(self._ask("nvmlDeviceGetName", handle)),
            dtypes=tuple(dtype for dtype, first in FIRST_WITH.items() if capability >= first),
            split=split if mig else "",
        )

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self._ask("nvmlDeviceGetHandleByUUID", uuid)
        return self._handles[uuid]

    def _ask(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._api, function)(*arguments)
        except self._api.NVMLError as error:
            raise self._refused(error) from None
        except self._api.NVMLLibraryMismatchError as error:
            # No NVMLError, for a function that this driver lacks.
            raise MonitorError(
                f"NVIDIA's driver is too old for what is asked of it: {error}; update it"
            ) from None

    def _refused(self, error: Any) -> MonitorError:
        """Return what an error of NVML means: that no GPU is there, or what is to be mended."""
        api = self._api
        if error.value in {
            api.NVML_ERROR_LIBRARY_NOT_FOUND, api.NVML_ERROR_DRIVER_NOT_LOADED, api.NVML_ERROR_GPU_NOT_FOUND,
        }:  # fmt: skip
            return NoGpu(f"NVML says {str(error)!r}")
        remedies = {
            api.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver and library are of different versions, as after an "
            "update: reboot, or load the driver anew",
            api.NVML_ERROR_NO_PERMISSION: "let this user read and write /dev/nvidia*",
            api.NVML_ERROR_GPU_IS_LOST: "the GPU fell off the bus: reboot",
            api.NVML_ERROR_RESET_REQUIRED: "the GPU must be reset: nvidia-smi --gpu-reset, or reboot",
            api.NVML_ERROR_IRQ_ISSUE: "the GPU's interrupts do not arrive: see dmesg, or reboot",
        }
        remedy = remedies.get(error.value, "see what nvidia-smi and dmesg say of it")
        return MonitorError(f"NVIDIA's driver is there, but broken: NVML says {str(error)!r}; {remedy}")
