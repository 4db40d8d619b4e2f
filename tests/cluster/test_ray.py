"""Ray itself: probes as actors on two nodes of this machine, and all that may befall a job."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autotune.cluster import Cluster
from autotune.errors import ProbeError
from autotune.executors.cluster import ClusterTracer
from autotune.executors.jobs import Jobs
from autotune.executors.orders import JobFolder
from autotune.executors.scheduler import SchedulerError
from autotune.executors.session import find_scheduler
from autotune.models.resolve import resolve
from autotune.outcome import Crash, Lost, Ok, Oom
from autotune.testing.executors import ProcessContract
from tests.cluster.nights import GROWS, WAITS, WINNERS, Night, winners
from tests.cluster.probes import DEVICE, LONG, MODELS, Running, executor_of, go, request, training, wait_for
from tests.cluster.ray_nodes import runner_of
from tests.contracts.test_executors import make_request

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


def scheduler_of(cluster, name="small"):
    return find_scheduler(Cluster.read(cluster).target(name))


def living(cluster):
    return [name for name, job in scheduler_of(cluster).listing().jobs.items() if job.end is None]


class TestRay(ProcessContract):
    @pytest.fixture(autouse=True)
    def _on_cluster(self, _nothing_left, on_ray):
        self.cluster = on_ray
        yield
        wait_for(lambda: not living(on_ray), 60)  # the program that wrote the answer ends after that

    def make_executor(self, behaviour):
        return executor_of(self.cluster)

    def make_request(self, kind, behaviour):
        return request(MODELS[behaviour], kind)


def test_a_trace_is_a_job_too(on_ray, tmp_path):
    target = Cluster.read(on_ray).target("small")
    asked = make_request("trace", micro_batch=2).model_copy(
        update={"model": resolve("tiny-gpt2", base=tmp_path)}
    )
    tracer = ClusterTracer(target, Jobs(scheduler_of(on_ray), on_ray.parent / "probe"), DEVICE)
    (trace,) = tracer.trace(asked, tmp_path / "trace", timeout=LONG).values()
    assert trace.timeline is not None, trace.reason


@pytest.mark.parametrize("fails", [False, True])
def test_one_probe_spans_two_nodes_and_has_one_verdict(on_ray, tmp_path, fails):
    executor = executor_of(on_ray, gpus=2, nodes=2)
    asked = request("second_rank_fails" if fails else "trains", ranks=2, nodes=2, sharding="ddp")
    outcome = executor.run(asked, tmp_path / "probe" / "1", timeout=LONG).answer
    job = JobFolder(tmp_path / "probe" / "1" / "job1")
    assert job.part(0).exists()
    assert job.part(1).exists()
    if fails:
        assert isinstance(outcome, Crash), outcome
        assert "ValueError: as told" in outcome.traceback
    else:
        assert isinstance(outcome, Ok), outcome
        assert len(outcome.memory.by_rank) == 2


def test_a_worker_that_is_killed_ends_the_probe_and_says_nothing_of_the_model(on_ray, tmp_path):
    probe = Running(executor_of(on_ray), request("waits"), tmp_path / "1")
    runner = runner_of(training(tmp_path / "1"))
    program = runner.children()
    runner.kill()
    outcome = probe.ended()
    assert isinstance(outcome, Lost), outcome
    assert outcome.cause == "node"
    wait_for(lambda: not any(one.is_running() for one in program), 60)
    go(on_ray)
    again = executor_of(on_ray).run(request("waits"), tmp_path / "1", timeout=LONG).answer
    assert isinstance(again, Ok), again


def test_a_node_that_goes_takes_its_probe_along_and_the_next_that_comes_has_it(nodes, on_ray, tmp_path):
    executor = executor_of(on_ray, "second")
    executor.describe()  # as a tuner does at its start
    probe = Running(executor, request("waits"), tmp_path / "1")
    training(tmp_path / "1")
    nodes.kill(1)
    outcome = probe.ended()
    assert isinstance(outcome, Lost), outcome
    assert outcome.cause == "node"
    wait_for(lambda: alive(nodes.address) == 1)  # a job that is asked for before that is queued for the node
    with pytest.raises(SchedulerError) as told:
        executor_of(on_ray, "second").run(request("trains"), tmp_path / "2", timeout=LONG)
    assert told.value.refused
    nodes.join()
    go(on_ray)
    again = executor_of(on_ray, "second").run(request("waits"), tmp_path / "1", timeout=LONG).answer
    assert isinstance(again, Ok), again


def alive(address):
    """Return how many nodes there are, as far as Ray knows."""
    asks = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
    return int(subprocess.check_output([sys.executable, "-c", asks, address]))


def test_a_python_that_is_not_there_is_the_file_s_mistake(on_ray, tmp_path):
    text = on_ray.read_text().replace("python: ", "python: /nowhere")
    (on_ray.parent / "wrong.yaml").write_text(text)
    with pytest.raises(ProbeError) as told:
        executor_of(on_ray.parent / "wrong.yaml").run(request("trains"), tmp_path / "1", timeout=LONG)
    assert "/nowhere" in str(told.value)


def test_a_sweep_whose_worker_is_killed_has_the_winners_of_slurm(on_ray):
    """And what it prints is one document: nothing of Ray's own."""
    with Night(on_ray) as night:
        first, second = (night.first_probe(cell) for cell in WAITS)
        runner_of(first).kill()
        wait_for(first.read_ended)
        night.first_probe(WAITS[0], 2)
        assert second.read_ended() is None, "one cell's job is no other's"
        go(on_ray)
        document = night.ended()  # read as JSON
        assert winners(document) == WINNERS
        assert night.causes(WAITS[0]) == ["node"]
        for cell in GROWS:
            assert any(isinstance(one, Oom) for one in night.outcomes(cell))
    wait_for(lambda: not living(on_ray), 60)


def test_a_controller_that_is_killed_finds_the_jobs_of_all_its_cells_again(on_ray):
    with Night(on_ray) as night:
        found = [night.first_probe(cell).read_submitted().id for cell in WAITS]
        night.kill()
        assert set(found) <= set(living(on_ray))
        night.resume()
        go(on_ray)
        assert winners(night.ended()) == WINNERS
        for cell, id_ in zip(WAITS, found, strict=True):
            assert [job.read_submitted().id for job in night.attempts(cell)] == [id_], (
                "waited for, and not repeated"
            )
    wait_for(lambda: not living(on_ray), 60)
