"""Jobs on a cluster, against a scheduler that does as it is told: what is asked, found again, and made of it."""

from __future__ import annotations

import os
import threading
from signal import SIGINT

import pytest

from autotune.cluster import ClusterTarget
from autotune.errors import InputError, NoDiskSpace, ProbeError
from autotune.executors import jobs as jobs_module
from autotune.executors import node
from autotune.executors.cluster import ClusterExecutor, ClusterTracer
from autotune.executors.jobs import Jobs
from autotune.executors.orders import Failed, JobFolder, JobOrder, Probed
from autotune.executors.scheduler import JobState, SchedulerError
from autotune.interruption import Interruption
from autotune.outcome import Lost, Oom
from autotune.probe.launch import end_all
from autotune.probe.protocol import Progress
from autotune.specs import DeviceSpec
from autotune.testing.arithmetic import Arithmetic
from autotune.testing.executors import ExecutorContract
from autotune.units import GIB
from tests.contracts.test_executors import make_request
from tests.executors.test_simulated import Traces, timeline
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.scheduler import ScriptedScheduler, answers, ends, goes_on

OK = Arithmetic(budget=1000).outcome(make_request("train").candidate)
DEVICE = DeviceSpec.parse("cpu:1GiB")
CANCELLED = Lost(cause="worker", phase="forward", message="SIGTERM")


@pytest.fixture
def target(tmp_path):
    return ClusterTarget(name="small", engine="slurm", shared=str(tmp_path), python="/usr/bin/python3")


@pytest.fixture
def order():
    return JobOrder(kind="probe", device=DEVICE, request=make_request("train"), timeout=60)


def probed(outcome=OK):
    return Probed(result={"answer": outcome, "seconds": 1.0})


def serves(job):
    """Run the node's program here."""
    node.serve(job.folder)
    return JobState(job.name, "completed", nodes=("n1",))


@pytest.fixture
def on_arithmetic(monkeypatch):
    """Have nodes own a device made of arithmetic, and traces."""
    made = ArithmeticExecutor(Arithmetic(budget=1000))
    monkeypatch.setattr(node, "find_executor", lambda *_, **__: made)
    monkeypatch.setattr(node, "LocalTracer", lambda *_, **__: BothTraces(timeline()))
    return made


def jobs_of(scheduler, tmp_path):
    return Jobs(scheduler, tmp_path, settle=0.2, ending=5.0)


class BothTraces(Traces):
    """Traces what a request has besides, too."""

    def trace(self, request, folder, **rest):
        one = super().trace(request, folder, **rest)[request.candidate]
        return dict.fromkeys((request.candidate, *request.also), one)


class TestCluster(ExecutorContract):
    """The contract, with the real node's program on both sides of real files."""

    @pytest.fixture(autouse=True)
    def _nodes(self, target, tmp_path, on_arithmetic):
        self.target, self.root = target, tmp_path / "probe"

    def make_executor(self, behaviour):
        return ClusterExecutor(self.target, jobs_of(ScriptedScheduler(serves), self.root), DEVICE, self.root)

    def make_request(self, kind, behaviour):
        return make_request(kind)


def test_an_answer_is_taken_as_it_is_and_asked_for_once(tmp_path, order):
    scheduler = ScriptedScheduler(answers(probed()))
    found = jobs_of(scheduler, tmp_path).ask(order, tmp_path / "0001")
    assert found.result.answer == OK
    # A tuner that was killed before it noted it.
    again = jobs_of(scheduler, tmp_path).ask(order, tmp_path / "0001")
    assert again == found
    assert len(scheduler.submitted) == 1
    jobs_of(scheduler, tmp_path).ask(order, tmp_path / "0001", fresh=True)
    jobs_of(scheduler, tmp_path).ask(order.model_copy(update={"timeout": 61}), tmp_path / "0001")
    assert len(scheduler.submitted) == 3


def test_what_something_ended_is_asked_for_again(tmp_path, order):
    scheduler = ScriptedScheduler(answers(probed(CANCELLED)), answers(probed()))
    first = jobs_of(scheduler, tmp_path).ask(order, tmp_path)
    assert isinstance(first.result.answer, Lost)
    assert jobs_of(scheduler, tmp_path).ask(order, tmp_path).result.answer == OK


@pytest.mark.parametrize("noted", [True, False])
def test_a_tuner_that_was_killed_finds_its_job_again_and_cancels_what_nobody_waits_for(
    tmp_path, order, noted
):
    scheduler = ScriptedScheduler(goes_on)
    before = jobs_of(scheduler, tmp_path)
    job, _ = before._submit(order, tmp_path / "0001")
    if not noted:  # killed between sbatch and the note of its number
        job.submitted.unlink()
    before._submit(order, tmp_path / "0002")
    other = jobs_of(scheduler, tmp_path / "another run")
    other._submit(order, tmp_path / "another run" / "0001")
    threading.Timer(0.3, lambda: job.write(job.answer, probed())).start()
    found = jobs_of(scheduler, tmp_path).ask(order, tmp_path / "0001")
    assert found.result.answer == OK
    assert len(scheduler.submitted) == 3
    assert scheduler.cancelled == ["102"]


@pytest.mark.parametrize("answered", [True, False])
def test_a_job_that_ended_while_no_tuner_looked_is_no_try(tmp_path, order, answered):
    first = ScriptedScheduler(goes_on)
    job, _ = jobs_of(first, tmp_path)._submit(order, tmp_path / "0001")
    scheduler = ScriptedScheduler(answers(probed()))  # it knows nothing of the job
    scheduler.out_of_reach = 1
    if answered:  # a disk that is slow to show it
        threading.Timer(0.1, lambda: job.write(job.answer, probed())).start()
    assert jobs_of(scheduler, tmp_path).ask(order, tmp_path / "0001").result.answer == OK
    assert len(scheduler.submitted) == (0 if answered else 1)
    assert job.read_ended() is None if answered else job.read_ended().end == "gone"


def test_progress_is_told_once_and_whole(tmp_path, order):
    heard = []

    def speaks(job):
        line = Progress(phase="build").model_dump_json()
        job.folder.progress.write_text(f"{line}\n{line[:7]}")

        def rest():
            with job.folder.progress.open("a") as said:
                said.write(f"{line[7:]}\n")
            job.folder.write(job.folder.answer, probed())

        threading.Timer(0.3, rest).start()

    jobs_of(ScriptedScheduler(speaks), tmp_path).ask(order, tmp_path, heard.append)
    assert heard == [Progress(phase="build")] * 2


def test_an_interruption_cancels_the_job_and_is_passed_on(tmp_path, order):
    scheduler = ScriptedScheduler(goes_on)

    def interrupt(_):
        raise Interruption(SIGINT)

    def speaks(job):
        job.folder.progress.write_text(Progress(phase="build").model_dump_json() + "\n")
        (job.folder.probe / "scratch").mkdir(parents=True)

    scheduler.script = [speaks]
    with pytest.raises(Interruption):
        jobs_of(scheduler, tmp_path).ask(order, tmp_path, interrupt)
    assert scheduler.cancelled == ["101"]
    assert not (tmp_path / "job1" / "probe" / "scratch").exists()
    assert JobFolder(tmp_path / "job1").read_ended().end == "cancelled"


@pytest.mark.parametrize(
    ("nodes", "answer", "cancelled"),
    [
        (2, Failed(error="probe", message="no"), ["101"]),
        (2, probed(), []),
        (1, Failed(error="probe", message="no"), []),
    ],
)
def test_what_one_of_several_nodes_fails_at_ends_the_others_parts(tmp_path, nodes, answer, cancelled):
    request = make_request("train", 2, sharding="ddp").model_copy(update={"nodes": nodes})
    order = JobOrder(kind="probe", device=DEVICE, request=request, gpus=2, nodes=nodes, timeout=60)

    def says_so_and_goes_on(job):
        job.folder.write(job.folder.answer, answer)
        return goes_on(job)

    scheduler = ScriptedScheduler(says_so_and_goes_on)
    assert jobs_of(scheduler, tmp_path).ask(order, tmp_path) == answer
    assert scheduler.cancelled == cancelled
    assert JobFolder(tmp_path / "job1").read_ended() is None


def test_a_tuner_that_begins_cancels_nothing_before_it_asks_for_work(tmp_path, order):
    scheduler = ScriptedScheduler(goes_on)
    job, _ = jobs_of(scheduler, tmp_path)._submit(order, tmp_path / "0001")
    scheduler.script = [answers(probed())]
    again = jobs_of(scheduler, tmp_path)
    again.ask(JobOrder(kind="describe", device=DEVICE, timeout=60), tmp_path / "site", fresh=True)
    assert scheduler.cancelled == []
    job.write(job.answer, probed())
    again.ask(order.model_copy(update={"timeout": 61}), tmp_path / "0002")
    assert scheduler.cancelled == ["101"], "nobody has asked for that"


def test_all_waits_end_when_everything_is_to_end(tmp_path, order):
    scheduler = ScriptedScheduler(goes_on)
    threading.Timer(0.3, end_all).start()
    ended = jobs_of(scheduler, tmp_path).ask(order, tmp_path)
    assert ended.end == "cancelled"
    assert scheduler.cancelled == ["101"]


def test_a_failed_node_is_left_out_as_long_as_another_is_there(tmp_path, order):
    scheduler = ScriptedScheduler(ends("node", "n1"), ends("node", "n2"), answers(probed()))
    jobs = jobs_of(scheduler, tmp_path)
    assert jobs.ask(order, tmp_path / "0001").end == "node"
    # Another start of the tuner reads it in the folder.
    jobs_of(scheduler, tmp_path).ask(order, tmp_path / "0001")
    scheduler.refuses_exclusion = True
    assert jobs.ask(order, tmp_path / "0001").result.answer == OK
    assert [set(job.exclude) for job in scheduler.submitted] == [set(), {"n1"}, set()]


def test_a_preempted_job_is_submitted_again_and_that_counts_as_no_try(tmp_path, order):
    scheduler = ScriptedScheduler(*[ends("preempted", "n1")] * 5, answers(probed()))
    assert jobs_of(scheduler, tmp_path).ask(order, tmp_path).result.answer == OK
    assert len(scheduler.submitted) == 6
    assert not any(job.exclude for job in scheduler.submitted)


def test_a_scheduler_that_starts_anew_is_waited_for(tmp_path, order):
    scheduler = ScriptedScheduler(answers(probed()))
    scheduler.out_of_reach = 1
    assert jobs_of(scheduler, tmp_path).ask(order, tmp_path).result.answer == OK


def test_a_job_that_can_never_start_is_an_error_and_does_not_wait(tmp_path, order):
    scheduler = ScriptedScheduler(lambda job: JobState(job.name, never=True, why="PENDING, BadConstraints"))
    with pytest.raises(SchedulerError) as raised:
        jobs_of(scheduler, tmp_path).ask(order, tmp_path)
    assert raised.value.refused
    assert scheduler.cancelled == ["101"]


@pytest.mark.parametrize(
    ("end", "kind", "cause"),
    [
        ("memory", Oom, None), ("node", Lost, "node"), ("failed", Lost, "node"), ("completed", Lost, "node"),
        ("cancelled", Lost, "scheduler"), ("preempted", Lost, "scheduler"), ("time limit", Lost, "scheduler"),
        ("gone", Lost, "scheduler"),
    ],
)  # fmt: skip
def test_only_memory_speaks_of_the_candidate(target, tmp_path, monkeypatch, on_arithmetic, end, kind, cause):
    monkeypatch.setattr(jobs_module, "PREEMPTIONS", 2)
    jobs = jobs_of(ScriptedScheduler(serves, ends(end, "n1")), tmp_path)
    executor = ClusterExecutor(target, jobs, DEVICE, tmp_path)
    executor.describe()
    outcome = executor.run(make_request("train"), tmp_path / "0001", timeout=60).answer
    assert isinstance(outcome, kind)
    assert getattr(outcome, "cause", None) == cause
    assert outcome.phase == "start"
    assert getattr(outcome, "where", "device") == "device"  # the cpu device's memory is the machine's


def test_a_polled_kill_is_told_by_what_the_node_saw_of_its_memory(tmp_path, order):
    def killed(job):
        job.folder.memory.write_text("999\n")
        return ends("failed", "n1")(job)

    assert jobs_of(ScriptedScheduler(killed), tmp_path).ask(order, tmp_path).end == "memory"


def test_a_node_notes_that_it_holds_what_it_was_granted(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "SAMPLE", 0.01)
    job = JobFolder(tmp_path)
    for granted, noted in ((2**50, False), (2**20, True)):
        with node.memory_watched(job, granted):
            for _ in range(500):
                if job.memory.exists():
                    break
                threading.Event().wait(0.01 if noted else 0.0002)
        assert job.memory.exists() == noted


def test_a_program_that_never_began_is_an_error_with_what_it_wrote(target, tmp_path, on_arithmetic):
    def fails(job):
        job.folder.log.write_text("bash: /no/python: No such file or directory\n")
        return JobState(job.name, "failed", nodes=("n1",), why="FAILED, NonZeroExitCode")

    executor = ClusterExecutor(target, jobs_of(ScriptedScheduler(fails), tmp_path), DEVICE, tmp_path)
    with pytest.raises(ProbeError) as raised:
        executor.describe()
    assert (tmp_path / "site" / "job1" / "log").read_text().strip() in str(raised.value)


@pytest.mark.parametrize(
    ("error", "raised"),
    [("input", InputError), ("no disk space", NoDiskSpace), ("probe", ProbeError), ("internal", ProbeError)],
)
def test_what_a_node_raised_is_raised_here(target, tmp_path, error, raised):
    failed = Failed(error=error, message="no", traceback="Traceback")
    executor = ClusterExecutor(
        target, jobs_of(ScriptedScheduler(answers(failed)), tmp_path), DEVICE, tmp_path
    )
    with pytest.raises(raised):
        executor.run(make_request("train"), tmp_path / "0001", timeout=60)


def test_the_nodes_program_tells_what_its_work_raised(tmp_path, order, monkeypatch):
    def raises(*_, **__):
        raise InputError("--device cpu:1GiB: less than torch needs")

    monkeypatch.setattr(node, "find_executor", raises)
    job = JobFolder(tmp_path / "job1")
    job.root.mkdir()
    job.write(job.order, order)
    assert node.main([str(job.root)]) == 0
    assert job.read_answer() == Failed(error="input", message="--device cpu:1GiB: less than torch needs")
    job.order.write_text('{"protocol": 0}')
    node.main([str(job.root)])
    assert job.read_answer().error == "internal"


def test_a_node_that_is_told_to_end_leaves_no_answer(tmp_path, order, monkeypatch):
    def told(*_, **__):
        os.kill(os.getpid(), SIGINT)
        raise AssertionError("the signal comes first")

    monkeypatch.setattr(node, "find_executor", told)
    job = JobFolder(tmp_path / "job1")
    job.root.mkdir()
    job.write(job.order, order)
    assert node.main([str(job.root)]) == 130
    assert job.read_answer() is None


def test_what_a_probe_left_for_people_lies_where_they_look(tmp_path, order):
    def writes(job):
        (job.folder.probe / "rank0").mkdir(parents=True)
        (job.folder.probe / "stderr").write_text("last words\n")
        return answers(probed())(job)

    jobs_of(ScriptedScheduler(writes), tmp_path).ask(order, tmp_path / "0001")
    assert (tmp_path / "0001" / "stderr").read_text() == "last words\n"
    assert (tmp_path / "0001" / "rank0").is_dir()


def test_traces_come_from_one_job_and_are_kept_beside_the_run(target, tmp_path, on_arithmetic):
    scheduler = ScriptedScheduler(serves)
    tracer = ClusterTracer(target, jobs_of(scheduler, tmp_path), DEVICE)
    request = make_request("trace", micro_batch=2)
    request = request.model_copy(
        update={"also": (request.candidate.model_copy(update={"checkpointing": "full"}),)}
    )
    found = tracer.trace(request, tmp_path / "trace", timeout=60)
    assert [trace.timeline is not None for trace in found.values()] == [True, True]
    assert len(scheduler.submitted) == 1
    alone = request.model_copy(update={"also": ()})
    again = ClusterTracer(target, jobs_of(scheduler, tmp_path), DEVICE).trace(
        alone, tmp_path / "trace", timeout=60
    )
    assert again[request.candidate].timeline == found[request.candidate].timeline
    assert len(scheduler.submitted) == 1


def test_a_trace_that_is_ended_each_time_is_lost_and_not_refused(target, tmp_path):
    tracer = ClusterTracer(target, jobs_of(ScriptedScheduler(ends("cancelled")), tmp_path), DEVICE)
    (trace,) = tracer.trace(make_request("trace"), tmp_path, timeout=60).values()
    assert trace.lost is not None
    assert not trace.refused


def test_the_name_of_a_job_is_the_runs_and_the_orders(tmp_path, order):
    scheduler = ScriptedScheduler(answers(probed()))
    jobs_of(scheduler, tmp_path).ask(order, tmp_path / "0001")
    jobs_of(scheduler, tmp_path).ask(order, tmp_path / "0001", fresh=True)
    jobs_of(scheduler, tmp_path / "other").ask(order, tmp_path / "other")
    first, again, other = [job.name for job in scheduler.submitted]
    assert first.rpartition("-")[0] == again.rpartition("-")[0]
    assert (first.rpartition("-")[2], again.rpartition("-")[2]) == ("1", "2")
    assert other.split("-")[1] != first.split("-")[1]


@pytest.mark.parametrize(("granted", "each"), [("", 64 * GIB), (str(16 * 1024), 2 * GIB)])
def test_what_slurm_grants_a_node_is_shared_by_its_ranks(tmp_path, monkeypatch, on_arithmetic, granted, each):
    on_arithmetic.room = 64 * GIB  # as an executor of ranks says it: of each
    if granted:
        monkeypatch.setenv(node.GRANTED, granted)
    scheduler = ScriptedScheduler(serves)
    asked = JobOrder(kind="describe", device=DEVICE, gpus=16, nodes=2, timeout=60)
    assert jobs_of(scheduler, tmp_path).ask(asked, tmp_path / "site").host_room == each
