"""Which device a text means, and why there is none."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.candidate import Candidate
from autotune.devices.device import UnusableDevice
from autotune.devices.find import check_device, find, resolve_device
from autotune.devices.gpu import visible_gpus
from autotune.devices.hardware import find_hardware
from autotune.devices.monitor.monitor import Monitor, MonitorError
from autotune.devices.monitor.nvml import NvmlLibrary
from autotune.doctor import diagnose
from autotune.errors import InputError
from autotune.options import RunOptions
from autotune.run.spec import to_spec
from autotune.specs import DeviceSpec
from autotune.units import GIB
from tests.fakes.nvml import H100, T4, FakeNvml, no_nvml

pytestmark = pytest.mark.usefixtures("plain_environment")


def unusable(spec: DeviceSpec, opening: Callable[[], Monitor] = FakeNvml) -> str:
    """Return why a device cannot be used."""
    with pytest.raises(UnusableDevice) as caught:
        find(spec, opening)
    assert caught.value.about == ("device",)
    return caught.value.why


def test_auto_is_the_gpu_where_there_is_one() -> None:
    assert resolve_device(DeviceSpec.parse("auto"), FakeNvml) == DeviceSpec(kind="cuda")
    assert find(DeviceSpec.parse("auto"), FakeNvml).facts().name == H100.name


@pytest.mark.parametrize("opening", [no_nvml, lambda: FakeNvml(listed=())])
def test_without_a_gpu_the_next_command_is_named(opening: Callable[[], FakeNvml]) -> None:
    with pytest.raises(InputError, match=r"--device cuda: no GPU found: .* type --device cpu:\dGiB"):
        find(DeviceSpec.parse("cuda"), opening)


@pytest.mark.parametrize("opening", [no_nvml, lambda: FakeNvml(listed=())])
def test_without_a_gpu_auto_simulates_one(opening: Callable[[], FakeNvml]) -> None:
    resolved = resolve_device(DeviceSpec.parse("auto"), opening)
    assert (resolved.kind, resolved.hardware) == ("sim", "h100-sxm-80gb")
    assert re.match(
        r"no GPU found: NVML (says 'NVML Shared Library Not Found'|lists none); --device auto simulates",
        resolved.because,
    )
    assert resolve_device(resolved, opening) == resolved, "a resumed run says it too"
    assert find(DeviceSpec.parse("auto"), opening).facts().simulated


def test_ranks_that_share_the_cores_need_fewer_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    spec = DeviceSpec.parse("cpu:1GiB")
    with pytest.raises(UnusableDevice):
        check_device(spec)
    assert check_device(spec, 16) == spec
    given = {"model": "gpt2", "seq_len": "64", "target_global_batch": "1K", "device": "cpu:1GiB"}
    with pytest.raises(InputError) as caught:
        to_spec(RunOptions.load(given, "options"), check_device, Path.cwd())
    assert caught.value.about == ("device",)
    assert (
        to_spec(RunOptions.load({**given, "gpus": "16"}, "options"), check_device, Path.cwd()).device == spec
    )


class BrokenApi:
    """pynvml on a machine whose NVML answers with one error."""

    def __init__(self, value: int) -> None:
        import pynvml

        self._value, self._real = value, pynvml

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def nvmlInit(self) -> None:
        raise self._real.NVMLError(self._value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LIBRARY_NOT_FOUND", None),
        ("DRIVER_NOT_LOADED", None),
        ("GPU_NOT_FOUND", None),
        ("LIB_RM_VERSION_MISMATCH", "broken: NVML says .*mismatch.*: reboot"),
        ("NO_PERMISSION", "broken: NVML says .*/dev/nvidia"),
        ("GPU_IS_LOST", "broken: NVML says .*lost.*reboot"),
        ("UNKNOWN", "broken: NVML says .*nvidia-smi"),
    ],
)
def test_a_driver_that_is_broken_is_an_error_and_no_reason_to_simulate(
    name: str, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pynvml

    monkeypatch.setitem(sys.modules, "pynvml", BrokenApi(getattr(pynvml, f"NVML_ERROR_{name}")))
    if said is None:
        assert re.match("no GPU found: NVML says", resolve_device(DeviceSpec(kind="auto")).because)
        assert unusable(DeviceSpec(kind="cuda"), NvmlLibrary) == "missing"
        return
    for spec in (DeviceSpec(kind="auto"), DeviceSpec(kind="cuda")):
        with pytest.raises(MonitorError, match=f"(?i){said}") as raised:
            find(spec)
        assert raised.value.exit_code == 1
        assert "type --device cpu:" in str(raised.value)
    (finding,) = [finding for finding in diagnose() if finding.subject == "GPU"]
    assert finding.state == "missing"
    with pytest.raises(MonitorError) as raised:
        resolve_device(DeviceSpec(kind="auto"))
    assert finding.text == str(raised.value), "the words of a run"


def test_doctor_says_why_there_is_no_gpu_in_the_words_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    monkeypatch.setitem(sys.modules, "pynvml", BrokenApi(pynvml.NVML_ERROR_DRIVER_NOT_LOADED))
    (finding,) = [finding for finding in diagnose() if finding.subject == "GPU"]
    assert (finding.state, finding.text) == ("warning", resolve_device(DeviceSpec(kind="auto")).because)


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("sim:h100-80gb", "h100-sxm-80gb"),
        ("sim:A100", "a100-sxm-80gb"),
        ("sim:rtx-4090-24gb", "rtx-4090-24gb"),
    ],
)
def test_a_simulated_gpu_goes_by_id_or_alias(text: str, id: str) -> None:
    spec = resolve_device(DeviceSpec.parse(text))
    assert str(spec) == f"sim:{id}"
    facts = find(spec).facts()
    assert facts.hardware == id
    assert facts.simulated
    assert facts.name.endswith("(simulated)")
    assert facts.budget == find_hardware(id).usable_bytes()


def test_a_gpu_that_cannot_be_simulated_gets_the_nearest_name() -> None:
    with pytest.raises(InputError) as caught:
        check_device(DeviceSpec.parse("sim:h100-8gb"))
    with pytest.raises(InputError) as of_the_table:
        find_hardware("h100-8gb")
    assert caught.value.problems == of_the_table.value.problems
    with pytest.raises(ValueError, match="write it like sim:h100-80gb"):
        DeviceSpec.parse("sim")


def test_a_simulated_gpu_has_the_types_of_its_hardware() -> None:
    facts = find(DeviceSpec.parse("sim:t4")).facts()
    assert not facts.supports("bf16")
    assert "bf16" not in facts.peak_flops
    found = [
        find(DeviceSpec.parse(f"sim:{name}")).facts().supports("fp8")
        for name in ("a100", "l40s-48gb", "mi300x")
    ]
    assert found == [False, True, True]


def test_a_gpu_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(InputError, match=r"no GPU 7; there is cuda:0 \(NVIDIA H100 80GB HBM3\), cuda:1"):
        find(DeviceSpec.parse("cuda:7"), FakeNvml)


def test_a_split_gpu_is_refused() -> None:
    assert unusable(DeviceSpec.parse("cuda:2")) == "split"


def test_a_budget_for_a_gpu_is_refused() -> None:
    assert unusable(DeviceSpec(kind="cuda", budget=GIB)) == "too little"


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("1,0", ["Tesla T4", "NVIDIA H100 80GB HBM3"]),
        ("GPU-bbbb", ["Tesla T4"]),
        ("gpu-BBBB2222, 3", ["Tesla T4", "NVIDIA Quux 9000"]),
        ("GPU-aaaa", []),  # more than one begins like that
        ("0,9,1", ["NVIDIA H100 80GB HBM3"]),
        ("-1", []),
        ("", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(setting: str, names: list[str]) -> None:
    seen = visible_gpus(FakeNvml().listed, {"CUDA_VISIBLE_DEVICES": setting})
    assert [gpu.name for gpu in seen] == names


def test_the_schedulers_choice_of_gpu_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    device = find(DeviceSpec.parse("cuda"), FakeNvml)
    assert device.facts().name == "Tesla T4"
    assert device.environment(Candidate())["CUDA_VISIBLE_DEVICES"] == T4.uuid
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert unusable(DeviceSpec.parse("cuda")) == "hidden"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    assert unusable(DeviceSpec.parse("cuda")) == "split"
