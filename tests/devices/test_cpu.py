"""The processor with a budget: what the kernel enforces, and what its memory follows."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from autotune.candidate import Candidate
from autotune.devices import host
from autotune.devices.cpu import CpuDevice
from autotune.devices.device import UnusableDevice
from autotune.specs import DeviceSpec
from autotune.units import GIB, MIB

pytestmark = pytest.mark.usefixtures("plain_environment")


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


def printed(program: str, **variables: str) -> int:
    """Return the number that a program prints, run as on the device, with some variables set otherwise."""
    run = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, check=True,
        env={**os.environ, **CpuDevice(GIB).environment(Candidate()), **variables},
    )  # fmt: skip
    return int(run.stdout)


def test_memory_stops_growing_with_rows_of_ever_new_lengths() -> None:
    program = (
        "import resource, torch\n"
        "def rss(): return int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize()\n"
        # Convolutions, which oneDNN computes on every processor; matrix products in bf16 need AVX-512.
        "model = torch.nn.Sequential(*(torch.nn.Conv1d(w, w + 1, 3, padding=1) for w in range(16, 28)))\n"
        "def step(rows): model(torch.ones(2, 16, rows)).sum().backward()\n"
        "for rows in (512, *range(32, 192, 16)): step(rows)\n"
        "before = rss()\n"
        "for rows in range(200, 520, 8): step(rows)\n"
        "print(rss() - before)"
    )

    bounded = printed(program)
    unbounded = printed(program, ONEDNN_PRIMITIVE_CACHE_CAPACITY="8192", LRU_CACHE_CAPACITY="8192")
    assert bounded < 8 * MIB < 4 * 8 * MIB < unbounded


def test_a_rank_keeps_no_record_of_its_collectives() -> None:
    program = (
        "import re, torch, torch.distributed as dist\n"
        "def rss(): return int(re.search(r'RssAnon:\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024\n"
        "dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())\n"
        "number = torch.ones(1)\n"
        "for _ in range(100): dist.all_reduce(number)\n"
        "before = rss()\n"
        "for _ in range(2000): dist.all_reduce(number)\n"
        "print(rss() - before)"
    )

    assert printed(program) < MIB // 4 < MIB < printed(program, TORCH_FR_BUFFER_SIZE="2000")


def test_arrows_allocator_reserves_nothing_that_counts() -> None:
    program = (
        "import re, pyarrow\n"
        "def data(): return int(re.search(r'VmData:\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024\n"
        "before = data()\n"
        "rows = pyarrow.array(range(1000))\n"
        "print(data() - before)"
    )

    assert printed(program) < 128 * MIB < GIB // 2 < printed(program, MIMALLOC_ARENA_EAGER_COMMIT="1")


def test_the_users_tunables_are_recorded_and_there_are_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert "GLIBC_TUNABLES" not in CpuDevice(GIB).environment(Candidate())
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    assert CpuDevice(GIB).environment(Candidate())["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"


def test_a_cpu_budget_beyond_the_machine_is_refused_with_what_there_is() -> None:
    with pytest.raises(
        UnusableDevice, match=r"more than this machine's memory; at most --device cpu:\d+MiB"
    ) as caught:
        CpuDevice(psutil.virtual_memory().total + GIB)
    largest = str(caught.value).rsplit(" ", 1)[1]
    CpuDevice(DeviceSpec.parse(largest).budget or 0)


def test_a_cpu_budget_below_the_framework_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnusableDevice) as caught:
        CpuDevice(300 * MIB)
    assert caught.value.why == "too little"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    CpuDevice(GIB)
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    with pytest.raises(UnusableDevice) as caught:
        CpuDevice(GIB)
    assert caught.value.why == "too little"


def test_ranks_share_the_cores_unless_the_user_says_how_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert "OMP_NUM_THREADS" not in CpuDevice(2 * GIB).environment(Candidate())  # torch's own choice
    assert CpuDevice(2 * GIB, ranks=16).environment(Candidate())["OMP_NUM_THREADS"] == "4"
    assert CpuDevice(2 * GIB, ranks=100).environment(Candidate())["OMP_NUM_THREADS"] == "1"
    with pytest.raises(UnusableDevice):
        CpuDevice(GIB)
    CpuDevice(GIB, ranks=16)  # whose stacks are a sixteenth
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert CpuDevice(2 * GIB).environment(Candidate())["OMP_NUM_THREADS"] == "3"
    assert CpuDevice(2 * GIB, ranks=16).environment(Candidate())["OMP_NUM_THREADS"] == "3"


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
