"""NVML through the real pynvml, over a compiled stand-in for the driver's library: no GPU is needed."""

from __future__ import annotations

import os

import pytest

from autotune.devices.device import DeviceBusy, UnusableDevice
from autotune.devices.gpu import CudaDevice
from autotune.devices.monitor.monitor import MonitorError, NoGpu
from autotune.devices.monitor.nvml import NvmlLibrary
from tests.devices.stub_driver import driver, library

__all__ = ["driver", "library"]

pytestmark = pytest.mark.usefixtures("plain_environment")


def device() -> CudaDevice:
    nvml = NvmlLibrary()
    return CudaDevice(nvml.gpus()[0], nvml)


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    "code", [3, 4, 13, 999], ids=["unsupported", "no permission", "not found", "unknown"]
)
def test_a_gpu_whose_processes_or_energy_nvml_does_not_tell_can_be_used(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_PROCESSES", str(code))
    monkeypatch.setenv("STUB_ENERGY", str(code))
    gpu = device()
    gpu.prepare(timeout=0)
    assert gpu.facts().name == "NVIDIA H200"
    assert gpu.facts().energy_counter is None
    assert gpu.facts().lacks_energy


@pytest.mark.usefixtures("driver")
def test_all_of_nvml_that_is_asked_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device().facts().energy_counter == "nvml"
    monkeypatch.setenv("STUB_PID", str(os.getpid()))
    with pytest.raises(DeviceBusy) as busy:
        device()
    assert busy.value.processes == (os.getpid(),)
    monkeypatch.setenv("STUB_MIG", "1")
    with pytest.raises(UnusableDevice) as split:
        device()
    assert split.value.why == "split"


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(("code", "expected"), [(9, NoGpu), (999, MonitorError)])
def test_a_driver_that_does_not_start_is_told_from_one_that_is_not_there(
    code: int, expected: type[MonitorError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_INIT", str(code))
    with pytest.raises(MonitorError) as refused:
        NvmlLibrary()
    assert type(refused.value) is expected
