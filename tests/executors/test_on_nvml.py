"""The executor on a GPU as its driver shows it: the real pynvml, over a compiled stand-in for the driver's library."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from autotune.candidate import Candidate
from autotune.devices import gpu
from autotune.devices.device import DeviceBusy, UnusableDevice
from autotune.devices.find import find, resolve_device
from autotune.devices.gpu import CudaDevice
from autotune.devices.monitor import find as monitor_find
from autotune.devices.monitor.monitor import NoGpu
from autotune.executors.executor import ProbeResult
from autotune.executors.local import LocalExecutor
from autotune.outcome import Breakdown, Memory, Ok, Sample, StepTiming
from autotune.probe.exit import Exit
from autotune.probe.launch import Report
from autotune.probe.protocol import ProbeRequest, Result
from autotune.site import MachineFacts
from autotune.specs import DeviceSpec, ModelSpec
from autotune.units import MIB
from tests.devices.stub_driver import driver, library

__all__ = ["driver", "library"]

pytestmark = pytest.mark.usefixtures("plain_environment", "driver")

IDLE = 600
"""MiB that the stand-in shows where nobody says otherwise."""
FOREIGN = 2**22 + 1
SAMPLE = Sample(mean=0.1, half_width=0.001, count=5)
OUTCOME = Ok(
    memory=Memory(
        allocated=1, reserved=2, device_peak=3, budget=100, baseline=0,
        breakdown=Breakdown(parameters=1, gradients=0, optimizer_state=0, activations=0, other=0),
    ),
    timing=StepTiming(micro_step=SAMPLE, last_micro_step=SAMPLE, optimizer_step=SAMPLE),
    losses=(1.0,), phases=(), accumulation_steps=1,
)  # fmt: skip
REQUEST = ProbeRequest(
    kind="train", model=ModelSpec(name="x", source="config", config={}), candidate=Candidate(), seq_len=1,
    accumulation_steps=1, device="cuda:0", budget=1, seed=0, sample_seconds=1.0, sample_steps=2, folder="",
)  # fmt: skip
MACHINE = MachineFacts(packages={}, python="3", system="", libc="", processor="")


class Driver:
    """The level of the GPU's memory, in MiB, and a probe that changes it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder / "level"
        self.set(IDLE)
        monkeypatch.setenv("STUB_LEVEL", str(self._file))

    def set(self, mib: int) -> None:
        beside = self._file.with_suffix(".new")
        beside.write_text(str(mib))
        beside.replace(self._file)

    def probe(self, *levels: int, during: Callable[[], None] = lambda: None) -> Callable[..., Report]:
        """Return a launcher whose probe goes through these levels, and leaves the last one."""

        def launch(request: ProbeRequest, folder: object, **rest: Any) -> Report:
            during()
            for level in levels:
                self.set(level)
                time.sleep(3 * gpu._TICK)
            answer = Result(outcome=OUTCOME, counted_until=None)
            return Report(answer=answer, ending=Exit(exit_code=0, seconds=0.1), seconds=0.1)

        return launch


@pytest.fixture
def level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(gpu, "_TICK", 0.005)
    monkeypatch.setattr(gpu, "_POLL", 0.01)
    monkeypatch.setattr(CudaDevice.prepare, "__defaults__", (0.3,))
    return Driver(tmp_path, monkeypatch)


def executor(launcher: Callable[..., Report], device: str = "cuda") -> LocalExecutor:
    return LocalExecutor(find(DeviceSpec.parse(device)), launcher, MACHINE)


def run(executor: LocalExecutor, folder: Path) -> ProbeResult:
    return executor.run(REQUEST, folder / str(time.monotonic_ns()), timeout=10.0)


def peak(result: ProbeResult) -> int:
    assert isinstance(result.answer, Ok)
    return result.answer.memory.device_peak


def test_a_probes_peak_is_what_the_driver_saw_of_it(level: Driver, tmp_path: Path) -> None:
    result = run(executor(level.probe(5000, 7000, IDLE)), tmp_path)
    assert peak(result) == (7000 - IDLE) * MIB
    assert result.variables["CUDA_VISIBLE_DEVICES"].startswith("GPU-1")


def test_a_level_that_stays_up_stops_the_run(level: Driver, tmp_path: Path) -> None:
    probes = executor(level.probe(IDLE + 2000))
    run(probes, tmp_path)
    with pytest.raises(DeviceBusy) as busy:
        run(probes, tmp_path)
    assert (busy.value.processes, busy.value.above) == ((), 2000 * MIB)


def test_what_a_driver_keeps_is_the_new_level(
    level: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "STILL", 0.05)
    probes = executor(level.probe(5000, IDLE + 300))
    assert peak(run(probes, tmp_path)) == (5000 - IDLE) * MIB
    assert peak(run(probes, tmp_path)) == (5000 - IDLE - 300) * MIB


def test_the_number_of_a_process_of_elsewhere_stops_nothing(
    level: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the driver names the probe itself by its number outside, and may do so for a while after it."""
    probes = executor(level.probe(5000, IDLE, during=lambda: monkeypatch.setenv("STUB_PID", str(FOREIGN))))
    run(probes, tmp_path)
    assert peak(run(probes, tmp_path)) == (5000 - IDLE) * MIB


@pytest.mark.parametrize("code", [4, 999], ids=["no permission", "unknown"])
def test_a_library_that_fails_under_way_costs_a_peak_and_no_probe(
    code: int, level: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        monkeypatch.setenv("STUB_MEMORY", str(code))
        time.sleep(5 * gpu._TICK)

    result = run(executor(level.probe(7000, during=fail)), tmp_path)
    assert peak(result) == OUTCOME.memory.device_peak, "the worker's own"


@pytest.mark.usefixtures("level")
def test_of_two_gpus_each_is_shown_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_COUNT", "2")
    for index in (0, 1):
        device = find(DeviceSpec.parse(f"cuda:{index}"))
        assert device.facts().number == index
        assert device.facts().torch_name == "cuda:0"
        assert device.environment(Candidate())["CUDA_VISIBLE_DEVICES"].startswith(f"GPU-{index + 1}")
    with pytest.raises(UnusableDevice) as missing:
        find(DeviceSpec.parse("cuda:2"))
    assert missing.value.why == "missing"


@pytest.mark.usefixtures("level")
def test_a_gpu_that_is_split_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_MIG", "1")
    with pytest.raises(UnusableDevice) as split:
        find(DeviceSpec.parse("cuda"))
    assert split.value.why == "split"


def test_without_a_driver_a_gpu_is_simulated_and_one_of_amd_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_INIT", str(pynvml.NVML_ERROR_DRIVER_NOT_LOADED))
    monkeypatch.setattr(monitor_find, "AMD_DRIVER", tmp_path / "kfd")
    assert resolve_device(DeviceSpec.parse("auto")).kind == "sim"
    with pytest.raises(NoGpu) as none:
        monitor_find.open_monitor()
    assert "AMD" not in str(none.value)
    (tmp_path / "kfd").touch()
    assert "AMD" in resolve_device(DeviceSpec.parse("auto")).because
