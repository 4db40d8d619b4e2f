"""A GPU as seen from outside, on a stand-in for NVML."""

from __future__ import annotations

import os
import threading
import time

import psutil
import pytest

from autotune.candidate import Candidate
from autotune.devices import gpu
from autotune.devices.device import DeviceBusy
from autotune.devices.gpu import DRIFT, SLACK, CudaDevice
from autotune.devices.monitor.monitor import MemoryUse, MonitorError
from autotune.devices.monitor.nvml import NvmlLibrary
from autotune.memory.device_overhead import CUDA_CONTEXT
from autotune.units import GIB, MIB
from tests.fakes.nvml import H100, T4, UNKNOWN, FakeNvml

pytestmark = pytest.mark.usefixtures("plain_environment")


def test_a_known_gpu_has_its_peak_and_an_unknown_one_none() -> None:
    known = CudaDevice(H100, FakeNvml()).facts()
    assert known.hardware == "h100-sxm-80gb"
    assert known.peak_flops["bf16"] == pytest.approx(989.4e12)
    assert (known.driver, known.budget, known.total) == ("580.1", 79 * GIB, 80 * GIB)
    unknown = CudaDevice(UNKNOWN, FakeNvml()).facts()
    assert (unknown.hardware, unknown.peak_flops, unknown.supports("bf16")) == (None, {}, True)
    assert not CudaDevice(T4, FakeNvml()).facts().supports("bf16")
    assert (known.supports("fp8"), CudaDevice(T4, FakeNvml()).facts().supports("fp8")) == (True, False)


def test_a_gpu_counts_its_energy_or_says_why_not() -> None:
    counting = CudaDevice(H100, FakeNvml()).facts()
    assert (counting.energy_counter, counting.lacks_energy) == ("nvml", "")
    old = CudaDevice(T4, FakeNvml(counted=None)).facts()
    assert old.energy_counter is None
    assert "no counter of energy for this GPU" in old.lacks_energy


def test_expandable_segments_join_the_users_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    device = CudaDevice(H100, FakeNvml())
    on, off = (device.environment(Candidate(expandable_segments=value)) for value in (True, False))
    assert on["PYTORCH_ALLOC_CONF"] == on["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert off["PYTORCH_ALLOC_CONF"] == "expandable_segments:False"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128")
    assert device.environment(Candidate(expandable_segments=False))["PYTORCH_ALLOC_CONF"] == (
        "max_split_size_mb:128,expandable_segments:False"
    )
    chosen = Candidate(expandable_segments=False, max_split_size="64MiB", garbage_collection_threshold="80%")
    assert device.environment(chosen)["PYTORCH_ALLOC_CONF"] == (
        "expandable_segments:False,max_split_size_mb:64,garbage_collection_threshold:0.8"
    )


def test_a_gpu_in_use_is_refused_by_the_name_of_who_uses_it() -> None:
    with pytest.raises(DeviceBusy) as caught:
        CudaDevice(H100, FakeNvml(users=[(os.getpid(),)]))
    assert psutil.Process().name() in str(caught.value)
    assert str(os.getpid()) in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_probe_waits_until_memory_and_processes_are_gone() -> None:
    nvml = FakeNvml()
    device = CudaDevice(H100, nvml)
    nvml.used = [9 * GIB, 5 * GIB, GIB]
    nvml.users = [(1,), (), (1,), ()]
    device.prepare(timeout=60)
    assert (nvml.used, nvml.users) == ([GIB], [()])


def test_memory_that_does_not_come_back_is_said_with_its_amount() -> None:
    nvml = FakeNvml()
    device = CudaDevice(H100, nvml)
    nvml.used = [3 * GIB]
    with pytest.raises(DeviceBusy, match=r"holds 2\.00 GiB more than at the start") as busy:
        device.prepare(timeout=0.2)
    assert (busy.value.processes, busy.value.above) == ((), 2 * GIB)
    nvml.users = [(2**22 + 1,)]
    with pytest.raises(DeviceBusy, match=r"outside of this container.*\(process 4194305\)") as busy:
        device.prepare(timeout=0.2)
    assert busy.value.processes == (2**22 + 1,)


def test_the_peak_is_counted_from_the_starting_level() -> None:
    nvml = FakeNvml()
    device = CudaDevice(H100, nvml)
    nvml.used = [GIB, 7 * GIB, 3 * GIB]
    with device.watch() as watch:
        while len(nvml.used) > 1:
            pass
    assert watch.peak == 6 * GIB


def test_a_watch_survives_an_nvml_that_breaks() -> None:
    nvml = FakeNvml()
    device = CudaDevice(H100, nvml)
    nvml.broken = True
    with device.watch() as watch:
        pass
    assert watch.peak is None


def test_the_real_nvml_either_answers_or_says_what_is_missing() -> None:
    answer = ""
    try:
        gpus = NvmlLibrary().gpus()
    except MonitorError as error:
        gpus, answer = (), str(error)
    assert all(gpu.uuid.startswith("GPU-") for gpu in gpus)
    assert gpus or not answer or "NVML says" in answer


def test_a_gpu_needs_room_for_its_context() -> None:
    assert CudaDevice(H100, FakeNvml()).minimum() == CUDA_CONTEXT


def test_what_is_taken_after_the_training_is_not_in_its_peak() -> None:
    nvml = FakeNvml()
    device = CudaDevice(H100, nvml)
    nvml.used = [7 * GIB]
    with device.watch() as watch:
        while watch.peak is None:
            pass
        reported = time.monotonic()
        nvml.used = [70 * GIB]
        while watch.peak == 6 * GIB:
            pass
    assert (watch.peak_until(reported), watch.peak) == (6 * GIB, 69 * GIB)
    assert watch.peak_until(0.0) is None


ELSEWHERE = 2**22 + 1
"""No process of this machine: the kernel numbers them up to 2^22."""


def test_of_processes_that_nobody_here_knows_the_level_says_what_they_hold() -> None:
    device = CudaDevice(H100, FakeNvml(users=[(ELSEWHERE,)]))
    device.prepare(timeout=0)
    with pytest.raises(DeviceBusy) as busy:
        CudaDevice(H100, FakeNvml(users=[(ELSEWHERE,)], used=[9 * GIB]))
    assert busy.value.processes == (ELSEWHERE,)


def test_a_driver_that_keeps_more_than_at_first_gives_a_new_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "STILL", 0.0)
    nvml = FakeNvml()
    device = CudaDevice(H100, nvml)
    nvml.used = [GIB + DRIFT]
    device.prepare(timeout=0)
    nvml.used = [7 * GIB]
    with device.watch() as watch:
        while watch.peak is None:
            pass
    assert watch.peak == 6 * GIB - DRIFT, "from the level that it settled at"
    nvml.used = [GIB]
    device.prepare(timeout=0)
    nvml.used = [GIB + DRIFT + MIB]
    with pytest.raises(DeviceBusy):
        device.prepare(timeout=0)


def test_a_level_that_moves_or_has_a_process_is_no_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "STILL", 0.05)
    monkeypatch.setattr(gpu, "_POLL", 0.01)
    nvml = FakeNvml()
    device = CudaDevice(H100, nvml)
    nvml.used = [GIB + SLACK + (8 + index % 2 * 8) * MIB for index in range(1000)]
    with pytest.raises(DeviceBusy):
        device.prepare(timeout=0.2)
    nvml.used, nvml.users = [GIB + DRIFT], [(os.getpid(),)]
    with pytest.raises(DeviceBusy):
        device.prepare(timeout=0.2)


def test_a_driver_that_hangs_does_not_keep_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_JOIN", 0.01)
    nvml, answer = FakeNvml(), threading.Event()
    device = CudaDevice(H100, nvml)

    def hang(uuid: str) -> MemoryUse:
        assert answer.wait(60)
        return MemoryUse(80 * GIB, GIB)

    monkeypatch.setattr(nvml, "memory", hang)
    with device.watch() as watch:
        pass
    assert watch.peak is None
    answer.set()


def test_a_gpu_knows_by_which_number_it_was_asked_for() -> None:
    assert CudaDevice(H100, FakeNvml(), 1).facts().number == 1
