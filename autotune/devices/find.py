"""From what the user typed to the device there is."""

from __future__ import annotations

import os
from collections.abc import Callable

from autotune.devices.cpu import CpuDevice
from autotune.devices.cuda import CudaDevice, visible_gpus
from autotune.devices.device import Device
from autotune.devices.host import available_memory
from autotune.devices.nvml import Gpu, Nvml, NvmlError, NvmlLibrary
from autotune.devices.simulated import DEFAULT, SimulatedDevice
from autotune.errors import InputError
from autotune.hardware import find_hardware
from autotune.specs import DeviceSpec
from autotune.units import GIB

_Open = Callable[[], Nvml]


def resolve_device(spec: DeviceSpec, open_nvml: _Open = NvmlLibrary) -> DeviceSpec:
    """Replace `auto` by the GPU there is, else by a simulated one; and a simulated one's name by its id.

    Raises InputError, naming the nearest, for a GPU that the table does not know.
    """
    if spec.kind == "sim":
        assert spec.hardware is not None, "a simulated device is parsed with its name"
        return DeviceSpec(kind="sim", hardware=find_hardware(spec.hardware).id)
    if spec.kind != "auto":
        return spec
    try:
        _gpus(open_nvml)
    except NvmlError:
        return DeviceSpec(kind="sim", hardware=DEFAULT)
    return DeviceSpec(kind="cuda", index=spec.index)


def check_device(spec: DeviceSpec) -> DeviceSpec:
    """Return the spec without `auto`, once it is sure that the device is there and can give its budget.

    Raises InputError or DeviceBusy.
    """
    resolved = resolve_device(spec)
    find(resolved)
    return resolved


def find(spec: DeviceSpec, open_nvml: _Open = NvmlLibrary) -> Device:
    """Return the device that a spec means, ready for its first probe.

    Raises InputError when it is not there, or cannot give the budget asked for; DeviceBusy when another
    process uses it.
    """
    spec = resolve_device(spec, open_nvml)
    if spec.kind == "cpu":
        assert spec.budget is not None, "a cpu device is parsed with its budget"
        return CpuDevice(spec.budget)
    if spec.kind == "sim":
        assert spec.hardware is not None, "a simulated device is parsed with its name"
        return SimulatedDevice(find_hardware(spec.hardware))
    if spec.budget is not None:
        raise InputError("a GPU cannot be given a smaller budget than it has; leave the budget away")
    try:
        nvml, gpus = _gpus(open_nvml)
    except NvmlError as error:
        raise InputError(f"--device {spec} found no GPU ({error}); {_instead()}") from None
    if spec.index >= len(gpus):
        names = ", ".join(f"cuda:{index} ({gpu.name})" for index, gpu in enumerate(gpus))
        raise InputError(f"there is no GPU {spec.index}; there is {names}")
    return CudaDevice(gpus[spec.index], nvml)


def _gpus(open_nvml: _Open) -> tuple[Nvml, tuple[Gpu, ...]]:
    """Return NVML with the GPUs that this process may use: at least one, else NvmlError."""
    nvml = open_nvml()
    gpus = nvml.gpus()
    if not gpus:
        raise NvmlError("NVIDIA's management library lists none")
    visible = visible_gpus(gpus, os.environ)
    if not visible:
        hidden = os.environ["CUDA_VISIBLE_DEVICES"]
        raise NvmlError(f"CUDA_VISIBLE_DEVICES={hidden!r} hides the {len(gpus)} that there are")
    return nvml, visible


def _instead() -> str:
    """Name a command that works here: the processor, with a budget that this machine has free."""
    budget = max(1, min(8, int(0.75 * available_memory() / GIB)))
    return f"to tune for this machine's processor, type --device cpu:{budget}GiB; to simulate a GPU, --device auto"
