"""A real Slurm and a real Ray of two nodes each for the tests of this folder, and their cluster files."""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from autotune.cluster import Cluster
from autotune.executors.session import find_scheduler
from tests.cluster.daemons import slurm
from tests.cluster.ray_nodes import ray_nodes

ROOT = Path(__file__).parents[2]

ENVIRONMENT = (
    '{{PYTHONPATH: "{path}", OMP_NUM_THREADS: "1", AUTOTUNE_CONTRACT: "{mark}", AUTOTUNE_GO: "{shared}/go"}}'
)

ON_SLURM = f"""
engine: slurm
shared: {{shared}}
python: {{python}}
poll: 0.3
partitions:
  small: &small
    cpus: 1
    memory: 2500MiB
    environment: {ENVIRONMENT}
  large: *small
"""

ON_RAY = f"""
engine: ray
shared: {{shared}}
python: {{python}}
poll: 0.3
address: "{{address}}"
partitions:
  small: &small
    cpus: 1
    environment: {ENVIRONMENT}
  large: *small
  second:
    resources: {{{{second: 1}}}}
    environment: {ENVIRONMENT}
"""


def write(file, text, **values):
    """Write a cluster file whose nodes share its folder, for processes that have the mark of this test."""
    mark = os.environ.get("AUTOTUNE_CONTRACT", uuid.uuid4().hex)
    file.write_text(text.format(shared=file.parent, python=sys.executable, path=ROOT, mark=mark, **values))
    return file


@pytest.fixture(scope="session")
def daemons(tmp_path_factory):
    with slurm(tmp_path_factory.mktemp("slurm")) as conf:
        yield conf


@pytest.fixture
def cluster(daemons, tmp_path_factory):
    """Return a cluster file of Slurm's."""
    return write(tmp_path_factory.mktemp("shared") / "cluster.yaml", ON_SLURM)


@pytest.fixture(scope="session")
def nodes():
    with (
        tempfile.TemporaryDirectory(prefix="ray") as root,
        ray_nodes(Path(root)) as found,
    ):  # sockets' paths are short
        yield found


@pytest.fixture
def on_ray(nodes, tmp_path_factory):
    """Return a cluster file of Ray's; what speaks with it is of no single test."""
    shared = tmp_path_factory.mktemp("shared")
    file = shared / "cluster.yaml"
    with pytest.MonkeyPatch.context() as patch:
        mark = os.environ.get("AUTOTUNE_CONTRACT")
        patch.delenv("AUTOTUNE_CONTRACT", raising=False)
        find_scheduler(Cluster.read(write(file, ON_RAY, address=nodes.address)).target("small")).listing()
        if mark is not None:
            patch.setenv("AUTOTUNE_CONTRACT", mark)
        yield write(file, ON_RAY, address=nodes.address)
