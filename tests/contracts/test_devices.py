"""Every device keeps the same promises; the GPU's are tried on a stand-in for NVML."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.candidate import Candidate
from autotune.devices.cpu import CpuDevice
from autotune.devices.device import Device
from autotune.devices.gpu import CudaDevice
from autotune.devices.hardware import find_hardware
from autotune.devices.recorded_grid import RecordedGrid
from autotune.devices.replay import ReplayDevice
from autotune.devices.simulated import SimulatedDevice
from autotune.search.shipped import load_space
from autotune.testing.arithmetic import Arithmetic
from autotune.testing.grids import arithmetic_lines
from autotune.units import GIB
from tests.fakes.nvml import H100, FakeNvml

pytestmark = pytest.mark.usefixtures("plain_environment")


@pytest.fixture(params=["cpu", "cuda", "simulated", "replayed"])
def device(request: pytest.FixtureRequest) -> Device:
    match request.param:
        case "cpu":
            return CpuDevice(2 * GIB)
        case "cuda":
            return CudaDevice(H100, FakeNvml())
        case "replayed":
            lines = arithmetic_lines(Arithmetic(budget=1000), load_space("minimal"), micro_batches=(1,))
            return ReplayDevice(RecordedGrid.of(lines, "arithmetic"))
        case _:
            return SimulatedDevice(find_hardware("h100-80gb"))


def test_facts_do_not_change_and_fit_together(device: Device) -> None:
    facts = device.facts()
    assert facts == device.facts()
    assert 0 < device.minimum() < facts.budget <= facts.total
    assert facts.torch_name.split(":")[0] == facts.kind


def test_the_environment_is_text_and_shows_the_worker_one_device(device: Device) -> None:
    variables = device.environment(Candidate())
    assert all(isinstance(value, str) for value in variables.values())
    if device.facts().replayed:
        return  # no worker is started
    hidden = device.facts().kind == "cpu" or device.facts().simulated
    assert variables["CUDA_VISIBLE_DEVICES"] == ("" if hidden else H100.uuid)


def test_a_free_device_is_ready_at_once_and_again(device: Device) -> None:
    device.prepare(timeout=0)
    with device.watch() as watch:
        pass
    assert watch.peak is None or watch.peak >= 0
    device.prepare(timeout=0)


def test_there_is_room_to_offload_also_before_the_folder_exists(device: Device, tmp_path: Path) -> None:
    for place in ("host", "disk"):
        assert device.offload_room(tmp_path / "runs" / "new" / "probes", place) > 0
