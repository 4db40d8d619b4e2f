"""Slurm itself: probes as jobs on two nodes of this machine, and all that may befall a job."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from autotune.cluster import Cluster
from autotune.executors.cluster import ClusterExecutor
from autotune.executors.jobs import Jobs
from autotune.executors.orders import JobFolder
from autotune.executors.slurm import SlurmScheduler
from autotune.models.resolve import resolve
from autotune.outcome import Crash, Lost, Ok, Oom
from autotune.run.journal import read_record
from autotune.specs import DeviceSpec
from autotune.testing.executors import ProcessContract
from autotune.units import GIB
from tests.cluster.daemons import sinfo
from tests.contracts.test_executors import make_request

pytestmark = pytest.mark.cluster

BEHAVING = Path(__file__).parents[1] / "data" / "behaving.py"
DEVICE = DeviceSpec.parse("cpu:1GiB")
MODELS = {"trains": "trains", "hangs": "hangs", "leaves a process": "leaves"}
AUTOTUNE = [str(Path(sys.executable).parent / "autotune")]
LONG = 240.0


def living() -> list[str]:
    """Return the numbers of jobs that wait or run."""
    said = subprocess.run(
        ["squeue", "--me", "--noheader", "--format=%i"], capture_output=True, text=True, check=True
    )
    return said.stdout.split()


def wait_for(condition, seconds=LONG):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.1)
    return found


def executor_of(cluster, name="small", gpus=1, nodes=1):
    target = Cluster.read(cluster).target(name)
    root = cluster.parent / "probe"
    return ClusterExecutor(target, Jobs(SlurmScheduler(target), root), DEVICE, root, gpus, nodes)


def request(model, kind="train", ranks=1, nodes=1, **candidate):
    found = make_request(kind, ranks, **candidate)
    resolved = resolve(f"{BEHAVING}:{model}", base=BEHAVING.parent)
    return found.model_copy(update={"model": resolved, "nodes": nodes, "budget": GIB})


class TestSlurm(ProcessContract):
    @pytest.fixture(autouse=True)
    def _on_cluster(self, _nothing_left, cluster):
        self.cluster = cluster
        yield
        wait_for(lambda: not living(), 30)  # the program that wrote the answer ends after that

    def make_executor(self, behaviour):
        return executor_of(self.cluster)

    def make_request(self, kind, behaviour):
        return request(MODELS[behaviour], kind)


class Running:
    """A request under way in a thread, and the job that it is."""

    def __init__(self, executor, asked, folder):
        self.folder = folder
        self.result = None
        self._thread = threading.Thread(target=self._run, args=(executor, asked), daemon=True)
        self._thread.start()

    def _run(self, executor, asked):
        self.result = executor.run(asked, self.folder, timeout=LONG)

    def trains(self, attempt=1):
        """Wait until a worker of the attempt has said something; return the job's number."""
        job = JobFolder(self.folder / f"job{attempt}")
        wait_for(lambda: job.progress.exists() and job.progress.stat().st_size)
        return job.read_submitted().id

    def ended(self):
        self._thread.join(LONG)
        return self.result.answer


def test_a_job_over_its_memory_is_an_oom(cluster, tmp_path):
    outcome = (
        executor_of(cluster)
        .run(request("grows", micro_batch=4), tmp_path / "probe" / "1", timeout=LONG)
        .answer
    )
    assert isinstance(outcome, Oom), outcome
    assert outcome.where == "device"


def test_a_preempted_job_comes_again(cluster, tmp_path):
    probe = Running(executor_of(cluster), request("waits"), tmp_path / "probe" / "1")
    probe.trains()
    urgent = ["sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null"]
    subprocess.run([*urgent, "--time=1", "--wrap=sleep 1"], check=True, capture_output=True)
    assert isinstance(probe.ended(), Ok)
    assert JobFolder(tmp_path / "probe" / "1" / "job1").read_ended().end == "preempted"


@pytest.mark.parametrize("fails", [False, True])
def test_one_probe_spans_two_nodes_and_has_one_verdict(cluster, tmp_path, fails):
    executor = executor_of(cluster, gpus=2, nodes=2)
    asked = request("second_rank_fails" if fails else "trains", ranks=2, nodes=2, sharding="ddp")
    outcome = executor.run(asked, tmp_path / "probe" / "1", timeout=LONG).answer
    job = JobFolder(tmp_path / "probe" / "1" / "job1")
    assert job.part(0).exists()
    assert job.part(1).exists()
    if fails:
        assert isinstance(outcome, Crash), outcome
        assert outcome.reason == "exception"
        assert "ValueError: as told" in outcome.traceback
    else:
        assert isinstance(outcome, Ok), outcome
        assert len(outcome.memory.by_rank) == 2


def run_command(cluster, model, *more):
    return [
        *AUTOTUNE, "run", "--cluster", str(cluster), "--partition", "small", "--runs", str(cluster.parent / "runs"),
        "--model", f"{BEHAVING}:{model}", "--device", "cpu:1GiB", "--seq-len", "16", "--headroom", "0",
        "--target-global-batch", "8 samples", "--strategy", "graph", "--no-predict", "--max-probes", "4",
        "--sample-time", "0.3s", "--proof-time", "0.5s", "--speed-tolerance", "0.9", "--memory-tolerance", "0.9", *more,
    ]  # fmt: skip


def run_folder(cluster):
    return wait_for(lambda: next(iter((cluster.parent / "runs").glob("*/spec.yaml")), None)).parent


def job_of(run, number, attempt=1):
    """Wait until a probe's worker has said something; return its job."""
    job = JobFolder(run / "probes" / f"{number:04d}" / f"job{attempt}")
    wait_for(lambda: job.progress.exists() and job.progress.stat().st_size)
    return job


def test_a_run_survives_a_cancelled_job_a_node_set_down_and_a_job_over_its_memory(cluster):
    """Each has its own verdict, and the run ends with a proven winner."""
    with subprocess.Popen(
        run_command(cluster, "grows"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as tuner:
        run = run_folder(cluster)
        subprocess.run(["scancel", job_of(run, 1).read_submitted().id], check=True)
        again = job_of(run, 1, 2).read_submitted().id
        node = subprocess.run(
            ["squeue", "--noheader", f"--jobs={again}", "--format=%N"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        subprocess.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test"], check=True)
        said = tuner.communicate(timeout=LONG)[0].decode()
    subprocess.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)
    assert tuner.returncode == 0, said
    record = read_record(run / "journal.jsonl")
    lost = [
        entry.outcome.cause for entry in record.entries if isinstance(getattr(entry, "outcome", None), Lost)
    ]
    assert lost == ["scheduler", "node"]
    verdicts = {trial.candidate.micro_batch: type(trial.outcome) for trial in record.history}
    assert verdicts[1] is Ok
    assert Oom in verdicts.values()
    assert record.decided.winner is not None
    attempts = JobFolder.existing(run / "probes" / "0001")
    assert [ended and ended.end for one in attempts for ended in [one.read_ended()]] == [
        "cancelled",
        "node",
        None,
    ]
    wait_for(lambda: not living(), 30)
    wait_for(lambda: set(sinfo().values()) == {"idle"}, 60)


def test_a_tuner_that_is_killed_finds_its_job_again(cluster):
    with subprocess.Popen(
        run_command(cluster, "waits", "--max-probes", "1"), stdout=subprocess.DEVNULL
    ) as tuner:
        run = run_folder(cluster)
        job = job_of(run, 1)
        for child in (*psutil.Process(tuner.pid).children(recursive=True), tuner):
            child.kill()
    id_ = job.read_submitted().id
    assert id_ in living()
    done = subprocess.run(
        [*AUTOTUNE, "resume", str(run), "--json"], capture_output=True, text=True, timeout=LONG
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["decided"]["winner"] == 1
    attempts = JobFolder.existing(run / "probes" / "0001")
    assert [one.read_submitted().id for one in attempts] == [id_], "waited for, and not repeated"
    wait_for(lambda: not living(), 30)
