"""The ranks of one probe as a group: one deadline for all, and the same verdict whoever is ended or heard first."""

from __future__ import annotations

import os
import select
import threading
import time

import pytest

from autotune.candidate import Candidate
from autotune.devices.cpu import CpuDevice
from autotune.executors.find import find_executor, find_tracer
from autotune.executors.ranks import RanksExecutor
from autotune.outcome import Crash, Timeout
from autotune.probe.exit import Exit, Report
from autotune.probe.protocol import ProbeRequest, Progress, Result
from autotune.specs import DeviceSpec, ModelSpec
from autotune.units import GIB

GONE = Crash(reason="exception", phase="backward", message="Connection closed by peer")

REQUEST = ProbeRequest(
    kind="train", model=ModelSpec(name="made", source="config", config={}), seq_len=16,
    candidate=Candidate(sharding="fsdp2"), accumulation_steps=2, device="cpu", world_size=2, budget=GIB, seed=0,
    sample_seconds=0.1, sample_steps=3, folder="",
)  # fmt: skip


class Launches:
    """Stands for the launcher: rank `hanging` never ends by itself, and its peer raises as soon as it is gone."""

    def __init__(self, hanging: int, heard_first: int) -> None:
        self.hanging = hanging
        self.heard_first = heard_first
        self.ended = threading.Event()
        self.heard = threading.Event()
        self.timeouts: list[float] = []

    def __call__(self, request, folder, *, environment, timeout, on_start, cancel, **rest) -> Report:
        on_start()
        self.timeouts.append(timeout)
        rank = int(environment["RANK"])
        if rank == self.hanging:
            os.read(cancel, 1)  # returns at the end of file: the order to stop
            self.ended.set()
            report = Report(
                ending=Exit(signal=9, stopped=True, since=time.monotonic(), seconds=1),
                progress=Progress(phase="forward", step=1), seconds=1,
            )  # fmt: skip
        else:
            assert self.ended.wait(60)
            report = Report(
                answer=Result(outcome=GONE, since=time.monotonic()), ending=Exit(exit_code=0, seconds=1), seconds=1,
            )  # fmt: skip
        if rank == self.heard_first:
            self.heard.set()
        assert self.heard.wait(60)
        return report


@pytest.mark.parametrize("hanging", [0, 1])
@pytest.mark.parametrize("heard_first", [0, 1])
def test_a_rank_that_hangs_is_a_timeout_whoever_is_ended_or_heard_first(tmp_path, hanging, heard_first):
    launches = Launches(hanging, heard_first)
    executor = RanksExecutor([CpuDevice(GIB, ranks=2)] * 2, launches)
    finding = executor.run(REQUEST, tmp_path, timeout=0.2)
    assert finding.answer == Timeout(phase="forward", seconds=1)
    assert min(launches.timeouts) > 0.2, "the supervisors' own deadlines come after the group's"


@pytest.mark.parametrize("late", [0, 1])
def test_what_a_launch_waits_for_before_its_rank_starts_is_not_in_the_deadline(tmp_path, late):
    def launches(request, folder, *, environment, on_start, cancel, **rest) -> Report:
        if int(environment["RANK"]) == late:  # a server of warm probes imports, on a busy machine
            cancelled, _, _ = select.select([cancel], [], [], 0.6)
            assert not cancelled
        on_start()
        return Report(
            answer=Result(outcome=GONE, since=time.monotonic()), ending=Exit(exit_code=0, seconds=1), seconds=1,
        )  # fmt: skip

    executor = RanksExecutor([CpuDevice(GIB, ranks=2)] * 2, launches)
    answer = executor.run(REQUEST, tmp_path, timeout=0.2).answer
    assert isinstance(answer, Crash), answer
    assert answer.message.endswith(GONE.message)


def test_a_model_is_looked_at_with_the_threads_that_each_rank_will_have(tmp_path, monkeypatch):
    """Their stacks and buffers are most of what a process holds, and its speed is what ranks are compared by."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    threads = []

    def launches(request, folder, *, environment, **rest) -> Report:
        threads.append(environment.get("OMP_NUM_THREADS"))
        rest.get("on_start", lambda: None)()
        return Report(
            answer=Result(outcome=GONE, since=time.monotonic()),
            ending=Exit(exit_code=0, seconds=1),
            seconds=1,
        )

    device = DeviceSpec.parse("cpu:1GiB")
    executor = find_executor(device, find_tracer(device), gpus=2, launcher=launches)
    alone = REQUEST.model_copy(update={"kind": "inspect", "candidate": Candidate(), "world_size": 1})
    executor.run(alone, tmp_path / "inspect", timeout=1)
    executor.run(REQUEST, tmp_path / "train", timeout=1)
    assert threads == ["3", "3", "3"]
