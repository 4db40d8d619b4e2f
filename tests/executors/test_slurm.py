"""What Slurm is told, and what its answers mean; the daemons themselves are in tests/cluster."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from autotune.cluster import Cluster, ClusterTarget, read_target
from autotune.errors import InputError
from autotune.executors import slurm
from autotune.executors.orders import JobFolder, JobOrder
from autotune.executors.scheduler import Job, SchedulerError
from autotune.executors.slurm import SlurmScheduler, command_of, options, read_queue, script
from autotune.specs import DeviceSpec
from tests.contracts.test_executors import make_request

FILE = """
engine: slurm
shared: /shared
python: /shared/venv/bin/python
partitions:
  small:
    partition: gpu-small
    account: research
    qos: low
    gres: gpu:a100
    cpus: 4
    memory: 32GiB
    time_limit: 30m
    environment: {HF_HOME: "/shared/h f"}
    setup: [module load cuda/12.8]
    options: [--constraint=nvlink]
  other: {}
"""


@pytest.fixture
def cluster(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE)
    return Cluster.read(file)


def job(tmp_path, kind="probe", ranks=1, nodes=1, timeout=600.0, **rest):
    request = make_request("train", ranks=ranks, sharding="fsdp2" if ranks > 1 else "none")
    request = request.model_copy(update={"nodes": nodes})
    order = JobOrder(
        kind=kind, device=DeviceSpec(kind="cuda"), request=request, gpus=ranks, nodes=nodes, timeout=timeout
    )
    return Job("autotune-x", JobFolder(tmp_path / "job1"), order, **rest)


def test_a_job_asks_for_what_its_ranks_take(cluster, tmp_path):
    target = cluster.target("small")
    given = options(target, job(tmp_path, ranks=4, nodes=2, exclude=frozenset({"n2", "n1"})))
    expected = {
        "--partition=gpu-small", "--account=research", "--qos=low", "--gres=gpu:a100:2", "--cpus-per-task=8",
        "--mem=32768M", "--nodes=2", "--ntasks-per-node=1", "--time=12", "--exclude=n1,n2", "--constraint=nvlink",
        "--no-requeue", "--export=NONE", "--job-name=autotune-x",
    }  # fmt: skip
    assert expected <= set(given)
    traced = options(target, job(tmp_path, "trace"))
    assert not [one for one in traced if one.startswith(("--gres", "--exclude"))]
    plain = options(cluster.target("other"), job(tmp_path))
    assert "--partition=other" in plain
    assert not [one for one in plain if one.startswith(("--mem", "--gres", "--account", "--cpus"))]


def test_a_probe_ends_before_its_job_does(cluster, tmp_path):
    target = cluster.target("small")
    assert target.limited(7200) == 1800 - 120
    assert target.limited(60) == 60
    assert "--time=30" in options(target, job(tmp_path, timeout=target.limited(7200)))


def test_the_script_sets_up_and_becomes_the_nodes_program(cluster, tmp_path):
    lines = script(cluster.target("small"), job(tmp_path)).splitlines()
    assert lines[0] == "#!/bin/bash"
    assert lines[1] == "module load cuda/12.8"
    assert shlex.split(lines[2]) == ["export", "HF_HOME=/shared/h f"]
    assert shlex.split(lines[3]) == [
        "exec", "/shared/venv/bin/python", "-P", "-m", "autotune.executors.node", str(tmp_path / "job1"),
    ]  # fmt: skip


def test_several_nodes_and_containers_have_the_program_started_for_them(cluster, tmp_path):
    target = cluster.target("small")
    across = command_of(target, job(tmp_path, ranks=2, nodes=2))
    assert across[0] == "srun"
    assert {"--nodes=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--cpus-per-task=4"} <= set(across)
    inside = target.model_copy(update={"container": "/i.sif", "container_options": ("--nv",)})
    assert command_of(inside, job(tmp_path))[:5] == ["apptainer", "exec", "--nv", "/i.sif", target.python]
    plug_in = inside.model_copy(update={"container_runtime": "pyxis"})
    assert "--container-image=/i.sif" in command_of(plug_in, job(tmp_path))


def test_the_queue_is_read_as_it_is_printed():
    said = (
        "11|RUNNING|n1|None|autotune-a-b-1\n12|NODE_FAIL|n2|NodeDown|autotune-a-b-2\n13|RUNNING|n1|None|other\n"
        "14|PENDING||BadConstraints|autotune-a-b-3\n15|FAILED|n1|JobLaunchFailure|autotune-a-b-4\n"
        "16|COMPLETING|n1|None|autotune-a-b-5\n17|PENDING||Resources|autotune-a-b-6\n"
    )
    jobs = read_queue(said)
    assert set(jobs) == {"11", "12", "14", "15", "16", "17"}
    assert [state.end for state in jobs.values()] == [None, "node", None, "failed", None, None]
    assert [state.never for state in jobs.values()] == [False, False, True, False, False, False]
    assert jobs["12"].nodes == ("n2",)
    assert jobs["11"].running


def test_a_refused_job_is_told_from_a_scheduler_out_of_reach(monkeypatch, tmp_path):
    target = ClusterTarget(name="a", engine="slurm", shared="/", python="/python", poll=0.3)
    (tmp_path / "job1").mkdir()
    for reachable in (True, False):

        def run(command, reachable=reachable, **_):
            fails = command[0] == "sbatch" or not reachable
            return subprocess.CompletedProcess(command, int(fails), "", "sbatch: error")

        monkeypatch.setattr(slurm.subprocess, "run", run)
        with pytest.raises(SchedulerError) as raised:
            SlurmScheduler(target).submit(job(tmp_path))
        assert raised.value.refused == reachable


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ("shared: shared", {"shared"}), ("engine: pbs", {"engine"}), ("address: here:1", {""}),
        ("partitions: {a: {gpus: 1}}", {""}), ("partitions: {}", {"partitions"}),
        ("partitions: {a: {time_limit: 2m}}", {""}),
        ("partitions: {a: {options: [--export=ALL]}}", {"partitions.a.options.0"}),
        ("partitions: {a: {setup: [\"a\\n b\"]}}", {"partitions.a.setup.0"}),
        ("partitions: {a: {acount: b}}", {"partitions.a.acount"}),
    ],
)  # fmt: skip
def test_a_mistake_in_a_cluster_file_is_told(tmp_path, change, about):
    key = change.partition(":")[0]
    lines = {
        "engine": "engine: slurm",
        "shared": "shared: /s",
        "python": "python: /p",
        "partitions": "partitions: {a: {}}",
    }
    file = tmp_path / "c.yaml"
    file.write_text("\n".join({**lines, key: change}.values()))
    with pytest.raises(InputError) as raised:
        Cluster.read(file)
    assert {one if one in about else "" for one in raised.value.about or ("",)} == about


def test_a_partition_is_named_where_there_are_several(tmp_path, cluster):
    assert cluster.target("other").name == "other"
    for name in (None, "smal"):
        with pytest.raises(InputError) as raised:
            cluster.target(name)
        assert raised.value.about == ("partition",)
    assert read_target(None, None, tmp_path) is None
    with pytest.raises(InputError) as raised:
        read_target(None, "small", tmp_path)
    assert raised.value.about == ("partition",)
    with pytest.raises(InputError) as raised:
        read_target("none.yaml", "small", tmp_path)
    assert raised.value.about == ("cluster",)
    assert read_target("cluster.yaml", "small", tmp_path).account == "research"
