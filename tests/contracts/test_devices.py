"""Every device keeps the same promises; the GPU's are tried on a stand-in for NVML."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from autotune.candidate import Candidate
from autotune.devices import host
from autotune.devices.cpu import CpuDevice
from autotune.devices.device import Device, DeviceBusy
from autotune.devices.find import check_device, find, resolve_device
from autotune.devices.gpu import CudaDevice, visible_gpus
from autotune.devices.hardware import find_hardware
from autotune.devices.monitor.nvml import Gpu, MemoryUse, NoGpu, NvmlError, NvmlLibrary
from autotune.devices.simulated import SimulatedDevice
from autotune.doctor import diagnose
from autotune.errors import InputError
from autotune.memory.predictor import CUDA_CONTEXT
from autotune.specs import DeviceSpec
from autotune.units import GIB, MIB

H100 = Gpu(0, "GPU-aaaa1111", "NVIDIA H100 80GB HBM3", (9, 0), mig=False)
T4 = Gpu(1, "GPU-bbbb2222", "Tesla T4", (7, 5), mig=False)
SPLIT = Gpu(2, "GPU-aaaa3333", "NVIDIA A100-SXM4-40GB", (8, 0), mig=True)
UNKNOWN = Gpu(3, "GPU-dddd4444", "NVIDIA Quux 9000", (12, 0), mig=False)


@dataclass
class FakeNvml:
    """NVML as the tests need it: memory use is a script, of which the last value stays."""

    listed: tuple[Gpu, ...] = (H100, T4, SPLIT, UNKNOWN)
    used: list[int] = field(default_factory=lambda: [GIB])
    users: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    total: int = 80 * GIB
    broken: bool = False

    def driver(self) -> str:
        return "580.1"

    def gpus(self) -> tuple[Gpu, ...]:
        return self.listed

    def memory(self, uuid: str) -> MemoryUse:
        assert uuid in {gpu.uuid for gpu in self.listed}
        if self.broken:
            raise NvmlError("gone")
        used = self.used.pop(0) if len(self.used) > 1 else self.used[0]
        return MemoryUse(self.total, self.total - used)

    def processes(self, uuid: str) -> tuple[int, ...]:
        assert uuid in {gpu.uuid for gpu in self.listed}
        return self.users.pop(0) if len(self.users) > 1 else self.users[0]


def no_nvml() -> FakeNvml:
    raise NoGpu("NVML says 'NVML Shared Library Not Found'")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "GLIBC_TUNABLES",
        "OMP_NUM_THREADS",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["cpu", "cuda", "simulated"])
def device(request: pytest.FixtureRequest) -> Device:
    match request.param:
        case "cpu":
            return CpuDevice(2 * GIB)
        case "cuda":
            return CudaDevice(H100, FakeNvml())
        case _:
            return SimulatedDevice(find_hardware("h100-80gb"))


# What every device promises.


def test_facts_do_not_change_and_fit_together(device: Device) -> None:
    facts = device.facts()
    assert facts == device.facts()
    assert 0 < device.minimum() < facts.budget <= facts.total
    assert facts.torch_name.split(":")[0] == facts.kind


def test_the_environment_is_text_and_shows_the_worker_one_device(device: Device) -> None:
    variables = device.environment(Candidate())
    assert all(isinstance(value, str) for value in variables.values())
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


# The processor.


def test_the_kernel_enforces_the_cpu_budget() -> None:
    device = CpuDevice(GIB)
    limit = device.data_limit()
    assert limit == GIB

    def take(count: int) -> int:
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", f"b = bytearray({count})"], stderr=subprocess.DEVNULL,
            env={**os.environ, **device.environment(Candidate())},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
        ).returncode  # fmt: skip

    assert take(900 * MIB) == 0
    assert take(1100 * MIB) == 1


def test_cpu_memory_follows_what_is_allocated() -> None:
    program = (
        "import resource\n"
        "def rss(): return int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize()\n"
        "before = rss()\n"
        "blocks = [b'x' * 100_000 for _ in range(1000)]\n"
        "full = rss() - before\n"
        "del blocks[::2]\n"
        "half = rss() - before\n"
        "print(full, half)"
    )

    def measure(variables: dict[str, str]) -> tuple[int, int]:
        run = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE, check=True,
            env={**os.environ, **variables},
        )  # fmt: skip
        full, half = map(int, run.stdout.split())
        return full, half

    full, half = measure(CpuDevice(GIB).environment(Candidate()))
    assert full == pytest.approx(1000 * 100_000, rel=0.08)  # whole pages
    assert half == pytest.approx(full / 2, rel=0.05)
    _, kept = measure({})
    assert kept > 0.8 * full  # malloc's defaults keep the holes, so the test above can fail


def test_memory_stops_growing_with_rows_of_ever_new_lengths() -> None:
    program = (
        "import resource, torch\n"
        "def rss(): return int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize()\n"
        "model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(12)))\n"
        "def step(rows):\n"
        "    with torch.autocast('cpu', torch.bfloat16): loss = model(torch.ones(rows, 256)).sum()\n"
        "    loss.backward()\n"
        "for rows in (512, *range(32, 192, 16)): step(rows)\n"
        "before = rss()\n"
        "for rows in range(200, 520, 8): step(rows)\n"
        "print(rss() - before)"
    )

    def grown(variables: dict[str, str]) -> int:
        run = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, check=True,
            env={**os.environ, **CpuDevice(GIB).environment(Candidate()), **variables},
        )  # fmt: skip
        return int(run.stdout)

    bounded = grown({})
    unbounded = grown({"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024", "LRU_CACHE_CAPACITY": "1024"})
    assert bounded < 8 * MIB < 4 * 8 * MIB < unbounded


def test_the_users_tunables_are_kept_and_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    variables = CpuDevice(GIB).environment(Candidate())
    assert variables["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1:glibc.malloc.hugetlb=0"


def test_a_cpu_budget_beyond_the_machine_is_refused_with_what_there_is() -> None:
    with pytest.raises(
        InputError, match=r"more than this machine's memory; at most --device cpu:\d+MiB"
    ) as caught:
        CpuDevice(psutil.virtual_memory().total + GIB)
    largest = str(caught.value).rsplit(" ", 1)[1]
    CpuDevice(DeviceSpec.parse(largest).budget or 0)


def test_a_cpu_budget_below_the_framework_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="smaller than what torch"):
        CpuDevice(300 * MIB)
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    with pytest.raises(InputError, match="threads"):
        CpuDevice(GIB)


def test_a_cgroup_limits_what_this_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = tmp_path / "pod"
    group.mkdir()
    (group / "limit").write_text(str(3 * GIB))
    (group / "usage").write_text(str(GIB))
    (group / "memory.stat").write_text(f"anon 5\ncache {GIB // 2}\n")
    monkeypatch.setattr(host, "_ROOTS", ((tmp_path, "limit", "usage", "cache"),))
    monkeypatch.setattr(host, "_own_groups", lambda root: [root, root / "pod", root / "pod" / "deeper"])
    assert host.total_memory() == min(3 * GIB, psutil.virtual_memory().total)
    assert host.available_memory() <= 3 * GIB - GIB // 2
    (group / "limit").write_text("max\n")
    assert host.total_memory() == psutil.virtual_memory().total


# The GPU.


def test_a_known_gpu_has_its_peak_and_an_unknown_one_none() -> None:
    known = CudaDevice(H100, FakeNvml()).facts()
    assert known.hardware == "h100-sxm-80gb"
    assert known.peak_flops["bf16"] == pytest.approx(989.4e12)
    assert (known.driver, known.budget, known.total) == ("580.1", 79 * GIB, 80 * GIB)
    unknown = CudaDevice(UNKNOWN, FakeNvml()).facts()
    assert (unknown.hardware, unknown.peak_flops, unknown.supports("bf16")) == (None, {}, True)
    assert not CudaDevice(T4, FakeNvml()).facts().supports("bf16")
    assert (known.supports("fp8"), CudaDevice(T4, FakeNvml()).facts().supports("fp8")) == (True, False)


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
    with pytest.raises(DeviceBusy, match=r"holds 2\.00 GiB more than at the start"):
        device.prepare(timeout=0.2)
    nvml.users = [(2**22 + 1,)]
    with pytest.raises(DeviceBusy, match=r"outside of this container.*\(process 4194305\)"):
        device.prepare(timeout=0.2)


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


# ProbeResult one.


def test_auto_is_the_gpu_where_there_is_one() -> None:
    assert resolve_device(DeviceSpec.parse("auto"), FakeNvml) == DeviceSpec(kind="cuda")
    assert find(DeviceSpec.parse("auto"), FakeNvml).facts().name == H100.name


@pytest.mark.parametrize("open_nvml", [no_nvml, lambda: FakeNvml(listed=())])
def test_without_a_gpu_the_next_command_is_named(open_nvml: Callable[[], FakeNvml]) -> None:
    with pytest.raises(InputError, match=r"--device cuda: no GPU found: .* type --device cpu:\dGiB"):
        find(DeviceSpec.parse("cuda"), open_nvml)


@pytest.mark.parametrize("open_nvml", [no_nvml, lambda: FakeNvml(listed=())])
def test_without_a_gpu_auto_simulates_one(open_nvml: Callable[[], FakeNvml]) -> None:
    resolved = resolve_device(DeviceSpec.parse("auto"), open_nvml)
    assert (resolved.kind, resolved.hardware) == ("sim", "h100-sxm-80gb")
    assert re.match(
        r"no GPU found: NVML (says 'NVML Shared Library Not Found'|lists none); --device auto simulates",
        resolved.because,
    )
    assert resolve_device(resolved, open_nvml) == resolved, "a resumed run says it too"
    assert find(DeviceSpec.parse("auto"), open_nvml).facts().simulated


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
        with pytest.raises(InputError, match="--device cuda: no GPU found: NVML says"):
            find(DeviceSpec(kind="cuda"))
        return
    for spec in (DeviceSpec(kind="auto"), DeviceSpec(kind="cuda")):
        with pytest.raises(NvmlError, match=f"(?i){said}") as raised:
            find(spec)
        assert raised.value.exit_code == 1
        assert "type --device cpu:" in str(raised.value)
    (finding,) = [finding for finding in diagnose() if finding.subject == "GPU"]
    assert finding.state == "missing"
    with pytest.raises(NvmlError) as raised:
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
    with pytest.raises(InputError, match=r"GPU 'h100-8gb' is unknown; did you mean .*h100-sxm-80gb"):
        check_device(DeviceSpec.parse("sim:h100-8gb"))
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
    with pytest.raises(InputError, match="split into MIG instances"):
        find(DeviceSpec.parse("cuda:2"), FakeNvml)


def test_a_budget_for_a_gpu_is_refused() -> None:
    with pytest.raises(InputError, match="smaller budget"):
        find(DeviceSpec(kind="cuda", budget=GIB), FakeNvml)


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
    with pytest.raises(InputError, match="hides the 4"):
        find(DeviceSpec.parse("cuda"), FakeNvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    with pytest.raises(InputError, match="MIG"):
        find(DeviceSpec.parse("cuda"), FakeNvml)


def test_the_real_nvml_either_answers_or_says_what_is_missing() -> None:
    answer = ""
    try:
        gpus = NvmlLibrary().gpus()
    except NvmlError as error:
        gpus, answer = (), str(error)
    assert all(gpu.uuid.startswith("GPU-") for gpu in gpus)
    assert gpus or not answer or "NVML says" in answer


def test_a_gpu_needs_room_for_its_context() -> None:
    assert CudaDevice(H100, FakeNvml()).minimum() == CUDA_CONTEXT
