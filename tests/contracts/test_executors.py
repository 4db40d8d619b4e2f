"""What every executor must keep, run against each of them: real supervisors with workers that do as they are told."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from autotune.candidate import Candidate
from autotune.devices.cpu import CpuDevice
from autotune.devices.recorded_grid import RecordedGrid
from autotune.devices.replay import ReplayDevice
from autotune.executors.local import LocalExecutor
from autotune.executors.ranks import RanksExecutor
from autotune.executors.replay import ReplayExecutor
from autotune.outcome import Ok
from autotune.probe.launch import launch
from autotune.probe.protocol import Inspection, ProbeRequest, Result
from autotune.probe.warm import WarmLauncher
from autotune.search.shipped import load_space
from autotune.site import Site
from autotune.specs import ModelSpec
from autotune.testing.arithmetic import Arithmetic, ok
from autotune.testing.executors import ExecutorContract, ProcessContract
from autotune.testing.grids import arithmetic_lines
from autotune.units import GIB, MIB
from tests.executors.test_simulated import Traces, inspecting, timeline
from tests.executors.test_simulated import executor as simulated
from tests.fakes.executor import FACTS, ArithmeticExecutor
from tests.run.test_elsewhere import THERE, TURING, Remote

WORKER = Path(__file__).parents[2] / "benchmarks" / "fault_worker.py"
"""Says what it is told, in the phases of its request; standard library only."""
TOLD = {
    "trains": {},
    "hangs": {"FAULT_PHASE": "forward"},
    "leaves a process": {"FAULT_DAEMON": "1"},
}


def told(behaviour, request, folder, launcher=launch, **options):
    """Launch a worker that behaves so, under a real supervisor."""
    answer = (
        Inspection(facts=FACTS) if request.kind == "inspect" else Result(outcome=ok(64 * MIB, budget=GIB))
    )
    environment = {**options["environment"], "FAULT_ANSWER": answer.model_dump_json(), **TOLD[behaviour]}
    worker = (sys.executable, "-I", "-S", str(WORKER))
    return launcher(request, folder, **{**options, "environment": environment}, worker=worker)


class Warm:
    """What an executor's contract asks of one whose probes are forked, from servers of that worker."""

    @pytest.fixture(autouse=True)
    def _servers(self, _nothing_left):
        worker = (sys.executable, "-I", "-S", str(WORKER))
        server = (*worker[:3], str(Path(__file__).parents[1] / "data" / "serve.py"), str(WORKER))
        with WarmLauncher(server, worker) as self.warm:
            yield

    def launch(self, request, folder, *, worker, **options):
        """Launch a worker; a proof is always cold."""
        report = self.warm(request, folder, **options)
        assert (report.launcher == "cold") == (request.kind == "prove"), report.cold_because
        return report


def make_request(kind, ranks=1, **candidate):
    return ProbeRequest(
        kind=kind, model=ModelSpec(name="made", source="config", config={}), candidate=Candidate(**candidate),
        seq_len=16, accumulation_steps=2, device="cpu", world_size=1 if kind == "inspect" else ranks, budget=GIB,
        seed=0, sample_seconds=0.1, sample_steps=3, folder="",
    )  # fmt: skip


class TestLocal(ProcessContract):
    def make_executor(self, behaviour):
        return LocalExecutor(CpuDevice(GIB), partial(told, behaviour))

    def make_request(self, kind, behaviour):
        return make_request(kind)


class TestRanks(ProcessContract):
    def make_executor(self, behaviour):
        return RanksExecutor([CpuDevice(GIB, ranks=2)] * 2, partial(told, behaviour))

    def make_request(self, kind, behaviour):
        return make_request(kind, ranks=2, sharding="fsdp2")


class TestWarmLocal(Warm, ProcessContract):
    def make_executor(self, behaviour):
        return LocalExecutor(CpuDevice(GIB), partial(told, behaviour, launcher=self.launch))

    def make_request(self, kind, behaviour):
        return make_request(kind)


class TestWarmRanks(Warm, ProcessContract):
    def make_executor(self, behaviour):
        return RanksExecutor([CpuDevice(GIB, ranks=2)] * 2, partial(told, behaviour, launcher=self.launch))

    def make_request(self, kind, behaviour):
        return make_request(kind, ranks=2, sharding="fsdp2")


class TestSimulated(ExecutorContract):
    def make_executor(self, behaviour):
        return simulated(Traces(timeline()), launcher=inspecting)

    def make_request(self, kind, behaviour):
        budget = self.make_executor(behaviour).describe().device.budget
        return make_request(kind).model_copy(update={"budget": budget})


class TestReplay(ExecutorContract):
    def make_executor(self, behaviour):
        lines = arithmetic_lines(
            Arithmetic(budget=1000), load_space("minimal"), model=make_request("train").model
        )
        return ReplayExecutor(ReplayDevice(RecordedGrid.of(lines, "arithmetic")))

    def make_request(self, kind, behaviour):
        return make_request(kind, micro_batch=8).model_copy(update={"seq_len": 64})


class TestArithmetic(ExecutorContract):
    def make_executor(self, behaviour):
        return ArithmeticExecutor(Arithmetic(budget=1000))

    def make_request(self, kind, behaviour):
        return make_request(kind)


class TestElsewhere(ExecutorContract):
    def make_executor(self, behaviour):
        return Remote(Arithmetic(budget=1000), Site(device=TURING, machine=THERE))

    def make_request(self, kind, behaviour):
        return make_request(kind)


class Littering(ArithmeticExecutor):
    """Leaves its scratch folder."""

    def run(self, request, folder, **rest):
        (folder / "scratch").mkdir(parents=True, exist_ok=True)
        return super().run(request, folder, **rest)


class Inventive(ArithmeticExecutor):
    """Sets a variable that no file may hold, and measures nothing."""

    def run(self, request, folder, **rest):
        result = super().run(request, folder, **rest)
        if isinstance(result.answer, Ok):
            memory = result.answer.memory.model_copy(update={"device_peak": 0, "reserved": 0})
            result = result.model_copy(update={"answer": result.answer.model_copy(update={"memory": memory})})
        return result.model_copy(update={"variables": {"PATH": "/tmp"}})


@pytest.mark.parametrize(
    ("executor", "test"),
    [
        (Littering, "test_a_folder_is_left_without_scratch_and_can_be_used_again"),
        (Inventive, "test_the_variables_that_it_sets_are_those_that_a_file_may_hold"),
        (Inventive, "test_a_probe_ends_in_a_typed_outcome"),
    ],
)
def test_the_contract_finds_what_breaks_it(executor, test, tmp_path):
    made = {"make_executor": lambda self, behaviour: executor(Arithmetic(budget=1000))}
    suite = type("Broken", (TestArithmetic,), made)
    arguments = {"kind": "train"} if "typed" in test else {}
    with pytest.raises(AssertionError):
        getattr(suite(), test)(tmp_path=tmp_path, **arguments)
