"""NVML through the real pynvml, over a compiled stand-in for the driver's library: no GPU is needed."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pynvml
import pytest

from autotune.devices.device import DeviceBusy, UnusableDevice
from autotune.devices.gpu import CudaDevice
from autotune.devices.monitor.nvml import NoGpu, NvmlError, NvmlLibrary

SOURCE = Path(__file__).parent.parent / "cuda_stubs" / "nvml.c"

pytestmark = pytest.mark.usefixtures("plain_environment")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(SOURCE)], check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture
def driver(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})


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
    monkeypatch.setenv("STUB_PID", "4194305")
    with pytest.raises(DeviceBusy) as busy:
        device()
    assert busy.value.processes == (4194305,)
    monkeypatch.setenv("STUB_MIG", "1")
    with pytest.raises(UnusableDevice) as split:
        device()
    assert split.value.why == "split"


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(("code", "expected"), [(9, NoGpu), (999, NvmlError)])
def test_a_driver_that_does_not_start_is_told_from_one_that_is_not_there(
    code: int, expected: type[NvmlError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_INIT", str(code))
    with pytest.raises(NvmlError) as refused:
        NvmlLibrary()
    assert type(refused.value) is expected
