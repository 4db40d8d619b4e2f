"""Slurm itself: probes as jobs on two nodes of this machine, and all that may befall a job."""

from __future__ import annotations

import json
import subprocess

import psutil
import pytest

from autotune.cluster import Cluster
from autotune.executors.cluster import ClusterTracer
from autotune.executors.jobs import Jobs
from autotune.executors.orders import JobFolder
from autotune.executors.session import find_scheduler
from autotune.models.resolve import resolve
from autotune.outcome import Crash, Lost, Ok, Oom
from autotune.run.journal import read_record
from autotune.testing.executors import ProcessContract
from tests.cluster.daemons import living, node_of, resume, set_down, sinfo
from tests.cluster.probes import (
    BEHAVING,
    DEVICE,
    LONG,
    MODELS,
    Running,
    executor_of,
    go,
    request,
    started,
    training,
    wait_for,
)
from tests.contracts.test_executors import make_request

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


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


def test_a_job_over_its_memory_is_an_oom(cluster, tmp_path):
    go(cluster)
    folder = tmp_path / "probe" / "1"
    outcome = executor_of(cluster).run(request("grows", micro_batch=4), folder, timeout=LONG).answer
    assert isinstance(outcome, Oom), outcome
    assert outcome.where == "device"
    assert JobFolder(folder / "job1").read_ended().end == "memory", (
        "Slurm ended it, and not the device's budget"
    )


def test_a_trace_is_a_job_too(cluster, tmp_path):
    target = Cluster.read(cluster).target("small")
    asked = make_request("trace", micro_batch=2).model_copy(
        update={"model": resolve("tiny-gpt2", base=tmp_path)}
    )
    tracer = ClusterTracer(target, Jobs(find_scheduler(target), cluster.parent / "probe"), DEVICE)
    (trace,) = tracer.trace(asked, tmp_path / "trace", timeout=LONG).values()
    assert trace.timeline is not None, trace.reason
    assert [job.number for job in JobFolder.existing(tmp_path / "trace")] == [1]


@pytest.mark.parametrize("partition", ["small", "large"])
def test_a_preempted_job_comes_again(cluster, tmp_path, partition):
    """Also where Slurm would have requeued it: the tuner submits it again, as another job."""
    folder = tmp_path / "probe" / "1"
    probe = Running(executor_of(cluster, partition), request("waits"), folder)
    first = training(folder)
    urgent = ["sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null"]
    subprocess.run([*urgent, "--time=1", "--wrap=sleep 1"], check=True, capture_output=True)
    wait_for(first.read_ended)
    go(cluster)
    assert isinstance(probe.ended(), Ok)
    assert first.read_ended().end == "preempted"
    assert [one.number for one in JobFolder.existing(folder)] == [1, 2]


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
    wait_for(lambda: not living(), 30)


def run_command(cluster, model, *more):
    return [
        "run", "--cluster", str(cluster), "--partition", "small", "--runs", str(cluster.parent / "runs"),
        "--model", f"{BEHAVING}:{model}", "--device", "cpu:1GiB", "--seq-len", "16", "--headroom", "0",
        "--target-global-batch", "8 samples", "--strategy", "graph", "--no-predict", "--max-probes", "4",
        "--sample-time", "0.3s", "--proof-time", "0.5s", "--speed-tolerance", "0.9", "--memory-tolerance", "0.9", *more,
    ]  # fmt: skip


def run_folder(cluster):
    return wait_for(lambda: next(iter((cluster.parent / "runs").glob("*/spec.yaml")), None)).parent


def test_a_run_survives_a_cancelled_job_a_node_set_down_and_a_job_over_its_memory(cluster):
    """Each has its own verdict, and the run ends with a proven winner."""
    with started(*run_command(cluster, "grows"), stderr=subprocess.STDOUT) as tuner:
        run = run_folder(cluster)
        first = run / "probes" / "0001"
        subprocess.run(["scancel", training(first).read_submitted().id], check=True)
        node = node_of(training(first, 2).read_submitted().id)
        set_down(node)
        training(first, 3)
        resume(node)
        go(cluster)
        said = tuner.communicate(timeout=LONG)[0]
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
    attempts = JobFolder.existing(first)
    assert [ended and ended.end for one in attempts for ended in [one.read_ended()]] == [
        "cancelled",
        "node",
        None,
    ]
    wait_for(lambda: not living(), 30)
    wait_for(lambda: set(sinfo().values()) == {"idle"}, 60)


def stray(name):
    """Submit a job that nobody waits for."""
    command = [
        "sbatch",
        "--parsable",
        f"--job-name={name}",
        "--partition=small",
        "--mem=100M",
        "--output=/dev/null",
    ]
    said = subprocess.run([*command, "--wrap=sleep 600"], check=True, capture_output=True, text=True)
    return said.stdout.strip()


def test_a_tuner_that_is_killed_finds_its_job_again_and_cancels_what_nobody_waits_for(cluster):
    with started(*run_command(cluster, "waits", "--max-probes", "1")) as tuner:
        run = run_folder(cluster)
        first = run / "probes" / "0001"
        id_ = training(first).read_submitted().id
        for child in (*psutil.Process(tuner.pid).children(recursive=True), tuner):
            child.kill()
    prefix = Jobs(find_scheduler(Cluster.read(cluster).target("small")), run).prefix
    forgotten, of_another = stray(f"{prefix}forgotten-1"), stray("autotune-another-run-1")
    assert {id_, forgotten, of_another} <= set(living())
    with started("resume", run, "--json", stderr=subprocess.PIPE) as again:
        wait_for(lambda: forgotten not in living())
        assert {id_, of_another} <= set(living())
        go(cluster)
        said, told = again.communicate(timeout=LONG)
    assert again.returncode == 0, told
    assert json.loads(said)["decided"]["winner"] == 1
    attempts = JobFolder.existing(first)
    assert [one.read_submitted().id for one in attempts] == [id_], "waited for, and not repeated"
    wait_for(lambda: living() == [of_another], 30)
    subprocess.run(["scancel", of_another], check=True)
    wait_for(lambda: not living(), 30)
