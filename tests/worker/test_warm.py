"""Servers of warm probes as they are: they only import, and their forks are workers like those that start cold."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.devices.cpu import CpuDevice
from autotune.executors.local import LocalExecutor
from autotune.outcome import Ok, Oom
from autotune.probe.exit import Report
from autotune.probe.launch import MARK, Launcher, launch
from autotune.probe.warm import WarmLauncher
from autotune.tracing.cache import TraceCache
from autotune.tracing.client import LocalTracer
from autotune.units import GIB, MIB
from tests.data.requests import OWN, family, request

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "sharding"), [("gpt2", "none"), ("llama", "fsdp2")])
def test_a_server_has_one_thread_and_a_fork_imports_and_builds_no_more(
    tmp_path: Path, name: str, sharding: str
) -> None:
    asked = request(family(name), tmp_path, sharding=sharding)
    (tmp_path / "request.json").write_text(asked.model_dump_json())
    program = textwrap.dedent("""
        import json, os, sys
        from pathlib import Path
        from autotune.probe.protocol import ProbeRequest
        from autotune.worker import openblas, warm
        from autotune.worker.__main__ import Channel, Probe
        from autotune.validation import Frozen

        def complete(of=Frozen):
            own = {one.__name__ for one in of.__subclasses__() if one.__pydantic_complete__}
            return own.union(*map(complete, of.__subclasses__()))

        asked = ProbeRequest.model_validate_json(Path(sys.argv[1]).read_bytes())
        config = {name: asked.model.config.get(name) for name in ("model_type", "architectures")}
        warm.preload(config, asked.candidate.distributed)
        before = os.listdir("/proc/self/task")
        assert warm.refusal() == "", warm.refusal()
        assert len(os.listdir("/proc/self/task")) == 1
        if not os.fork():
            openblas.restart()
            assert len(os.listdir("/proc/self/task")) == len(before)
            known = set(sys.modules)
            Probe(asked, Channel(os.open(os.devnull, os.O_WRONLY)))._start()
            print("more:", *sorted(set(sys.modules) - known))
            built = complete()
            if asked.candidate.sharding == "none":
                print("answer:", Probe(asked, Channel(os.open(os.devnull, os.O_WRONLY))).answer().outcome.kind)
            print("built:", *sorted(complete() - built))
            sys.stdout.flush()
            os._exit(0)
        assert os.wait()[1] == 0
    """)
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "request.json")],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, MARK: "0" * 32},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    answer = "answer: ok\n" if sharding == "none" else ""
    assert ran.stdout == f"more:\n{answer}built:\n"


LOOKS = """
import ctypes, os, sys, threading
from autotune.worker import warm

def sleeps(name):
    def run():
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as comm:
            comm.write(name)
        started.set()
        threading.Event().wait()
    started = threading.Event()
    threading.Thread(target=run, daemon=True).start()
    started.wait()

warm._THREADS_END = 0.1
sleeps("jemalloc_bg_thd")
print(repr(warm.refusal()))
sleeps("pool")
print(repr(warm.refusal()))
sys.stdout.flush()
os._exit(0)
"""


def test_what_a_fork_would_miss_is_no_server() -> None:
    """A thread that an allocator starts again in its child is not missed there; any other is, and it is named."""
    ran = subprocess.run(
        [sys.executable, "-c", LOOKS], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, MARK: "0" * 32},
    )  # fmt: skip
    served, refused = ran.stdout.splitlines()
    assert served == "''"
    assert "pool" in refused
    assert "jemalloc" not in refused


class Forks:
    """A launcher that says how each launch went."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.reports: list[Report] = []

    def __call__(self, *where, **options) -> Report:  # type: ignore[no-untyped-def]
        self.reports.append(self.launcher(*where, **options))
        return self.reports[-1]


@pytest.fixture(scope="module")
def warm() -> Iterator[Forks]:
    with WarmLauncher() as launcher:
        yield Forks(launcher)


@pytest.mark.parametrize("compiled", ["none", "regional"])
def test_at_the_edge_of_the_budget_a_fork_ends_as_a_cold_worker(
    tmp_path: Path, warm: Forks, compiled: str
) -> None:
    model = family("llama", vocab_size=300_000)
    cold, first = Forks(launch), len(warm.reports)

    def probe(budget: int, launcher: Forks) -> object:
        # A processor without AVX-512 takes minutes for products this wide in bf16.
        asked = request(model, tmp_path, precision="fp32", compile=compiled)
        asked = asked.model_copy(update={"budget": budget})
        executor = LocalExecutor(CpuDevice(budget), launcher)
        return executor.run(asked, tmp_path / "probe", timeout=300).answer

    roomy = [probe(4 * GIB, launcher) for launcher in (warm, cold, warm)]
    assert all(isinstance(one, Ok) for one in roomy), roomy
    # What a process takes where there is room is not always what it needs: once it was 37 MiB more, of 969.
    needed = min(one.memory.reserved for one in roomy)
    for launcher in (warm, cold):
        above, below = probe(int(1.01 * needed), launcher), probe(int(0.99 * needed), launcher)
        assert isinstance(above, Ok), above
        assert isinstance(below, Oom), below
    forks = warm.reports[first:]
    assert [report.launcher for report in (*forks, *cold.reports)] == ["warm"] * 4 + ["cold"] * 3
    starts = [report.baseline or 0 for report in (forks[1], cold.reports[0])]
    assert abs(starts[0] - starts[1]) < 4 * MIB


def test_a_trace_and_a_users_model_are_served_by_forks(tmp_path: Path, warm: Forks) -> None:
    asked = request(OWN, tmp_path).model_copy(update={"budget": GIB})
    executor = LocalExecutor(CpuDevice(GIB), warm)
    for turn in range(2):  # a module of the user's that the first fork imported is not there in the second
        answer = executor.run(asked, tmp_path / f"probe{turn}", timeout=300).answer
        assert isinstance(answer, Ok), answer
    tracer = LocalTracer(TraceCache(tmp_path / "cache"), warm)
    (trace,) = tracer.trace(asked, tmp_path / "trace", timeout=300).values()
    assert trace.timeline is not None, trace.reason
    assert [report.launcher for report in warm.reports[-3:]] == ["warm"] * 3
