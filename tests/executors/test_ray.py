"""What Ray is asked for a job, and what is told where Ray is not there; the rest needs a cluster (`tests/cluster`)."""

from __future__ import annotations

import pytest

from autotune.cluster import ClusterTarget
from autotune.executors import ray
from autotune.executors.orders import JobFolder, JobOrder
from autotune.executors.scheduler import Job, SchedulerError
from autotune.specs import DeviceSpec
from tests.contracts.test_executors import make_request


def target(tmp_path, **more):
    given = {"engine": "ray", "shared": str(tmp_path), "python": "/venv/bin/python", "name": "gpu", "gpus": 1}
    return ClusterTarget(**given, cpus=4, resources={"a100": 1}, **more)


def job(tmp_path, kind, ranks=1, nodes=1):
    asked = make_request("trace" if kind == "trace" else "train", ranks).model_copy(update={"nodes": nodes})
    order = JobOrder(
        kind=kind, device=DeviceSpec.parse("cuda"), gpus=ranks, nodes=nodes, request=asked, timeout=60
    )
    return Job("autotune-a-b-1", JobFolder(tmp_path / "job1"), order)


def test_each_node_has_its_program_and_what_its_ranks_take(tmp_path):
    plan = ray.plan(target(tmp_path), job(tmp_path, "probe", ranks=4, nodes=2))
    assert plan["takes"] == {"CPU": 8, "GPU": 2, "a100": 2}
    assert [command[-1] for command in plan["commands"]] == ["--node=0", "--node=1"]


def test_a_trace_takes_no_device(tmp_path):
    assert "GPU" not in ray.plan(target(tmp_path), job(tmp_path, "trace"))["takes"]


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "find_spec", lambda name: None)
    with pytest.raises(SchedulerError) as told:
        ray.RayScheduler(target(tmp_path, address="nowhere:1")).submit(job(tmp_path, "probe"))
    assert told.value.refused
    assert "autotune[ray]" in str(told.value)
