"""From what the user typed to the device there is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from autotune.devices.cpu import CpuDevice
from autotune.devices.device import Device, UnusableDevice
from autotune.devices.gpu import CudaDevice, visible_gpus
from autotune.devices.hardware import find_hardware
from autotune.devices.host import available_memory
from autotune.devices.monitor.find import open_monitor
from autotune.devices.monitor.monitor import Gpu, Monitor, MonitorError, NoGpu
from autotune.devices.recorded_grid import RecordedGrid, read_grid
from autotune.devices.replay import ReplayDevice
from autotune.devices.simulated import SimulatedDevice
from autotune.options import SIMULATED_GPU
from autotune.specs import DeviceSpec
from autotune.units import GIB
from autotune.user_files import user_path

_Open = Callable[[], Monitor]
FindDevice = Callable[[DeviceSpec, int], DeviceSpec]
"""Checks that a device of this machine is there and can hold so many ranks, and replaces `auto`."""


def resolve_device(spec: DeviceSpec, opening: _Open = open_monitor) -> DeviceSpec:
    """Replace `auto` by the GPU there is, else by a simulated one, with why; a simulated one's name by its id.

    The path of a recorded grid becomes absolute.

    Raises InputError, naming the nearest, for a GPU that the table does not know; and for `auto` MonitorError where
    there is a driver that does not work: what was measured yesterday must not be predicted today.
    """
    if spec.kind == "sim":
        assert spec.hardware is not None, "a simulated device is parsed with its name"
        return spec.model_copy(update={"hardware": find_hardware(spec.hardware).id})
    if spec.kind == "replay":
        assert spec.file is not None, "a replayed device is parsed with its file"
        return spec.model_copy(update={"file": str(user_path(spec.file, "--device").absolute())})
    if spec.kind != "auto":
        return spec
    try:
        _gpus(opening)
    except NoGpu as error:
        return DeviceSpec(
            kind="sim", hardware=SIMULATED_GPU, because=f"{error}; --device auto simulates one then"
        )
    except MonitorError as error:
        raise MonitorError(f"{error}. {_instead()}") from None
    return DeviceSpec(kind="cuda", index=spec.index)


def check_device(spec: DeviceSpec, ranks: int = 1) -> DeviceSpec:
    """Return the spec without `auto`, once it is sure that the device is there and can give each rank its budget.

    Raises as `find`.
    """
    resolved = resolve_device(spec)
    find(resolved, ranks=ranks)
    return resolved


def find(spec: DeviceSpec, opening: _Open = open_monitor, ranks: int = 1) -> Device:
    """Return the device that a spec means, ready for its first probe. On the cpu, `ranks` share the cores.

    Raises UnusableDevice when it is not there, or cannot give the budget asked for; DeviceBusy when another
    process uses it; MonitorError when its driver does not work.
    """
    spec = resolve_device(spec, opening)
    if spec.kind == "cpu":
        assert spec.budget is not None, "a cpu device is parsed with its budget"
        return CpuDevice(spec.budget, ranks)
    if spec.kind == "sim":
        assert spec.hardware is not None, "a simulated device is parsed with its name"
        return SimulatedDevice(find_hardware(spec.hardware))
    if spec.kind == "replay":
        assert spec.file is not None, "a replayed device is parsed with its file"
        return ReplayDevice(read_grid(Path(spec.file)))
    if spec.budget is not None:
        raise UnusableDevice(
            "a GPU cannot be given a smaller budget than it has; leave the budget away", "too little"
        )
    try:
        monitor, gpus = _gpus(opening)
    except NoGpu as error:
        raise UnusableDevice(
            f"--device {spec}: {error}. {_instead()}", "hidden" if error.hidden else "missing"
        ) from None
    except MonitorError as error:
        raise MonitorError(f"--device {spec}: {error}. {_instead()}") from None
    if spec.index >= len(gpus):
        names = ", ".join(f"cuda:{index} ({gpu.name})" for index, gpu in enumerate(gpus))
        raise UnusableDevice(f"there is no GPU {spec.index}; there is {names}", "missing")
    return CudaDevice(gpus[spec.index], monitor, spec.index)


def recorded_grid(spec: DeviceSpec) -> RecordedGrid | None:
    """Return the grid that a replay answers from; None for any other device. Raises InputError."""
    device = find(spec) if spec.kind == "replay" else None
    return device.grid if isinstance(device, ReplayDevice) else None


def _gpus(opening: _Open) -> tuple[Monitor, tuple[Gpu, ...]]:
    """Return the monitor with the GPUs that this process may use. Raises NoGpu where there is none, MonitorError."""
    monitor = opening()
    gpus = monitor.gpus()
    if not gpus:
        raise NoGpu(f"{monitor.library} lists none")
    visible = visible_gpus(gpus, os.environ)
    if not visible:
        hidden = os.environ["CUDA_VISIBLE_DEVICES"]
        raise NoGpu(f"CUDA_VISIBLE_DEVICES={hidden!r} hides the {len(gpus)} that there are", hidden=True)
    return monitor, visible


def _instead() -> str:
    """Name what works here: the processor, with a budget that this machine has free, or a simulated GPU."""
    budget = max(1, min(8, int(0.75 * available_memory() / GIB)))
    return (
        f"To tune for this machine's processor, type --device cpu:{budget}GiB; to simulate a GPU, "
        f"--device sim:{SIMULATED_GPU}"
    )
