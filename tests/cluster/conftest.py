"""A real Slurm for the tests of this folder."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import pytest

from tests.cluster.daemons import slurm

ROOT = Path(__file__).parents[2]

FILE = """
engine: slurm
shared: {shared}
python: {python}
poll: 0.3
partitions:
  small: &small
    cpus: 1
    memory: 2500MiB
    environment: {{PYTHONPATH: "{path}", OMP_NUM_THREADS: "1", AUTOTUNE_CONTRACT: "{mark}"}}
  large: *small
  tight: {{<<: *small, partition: small, memory: 600MiB}}
"""


@pytest.fixture(scope="session")
def daemons(tmp_path_factory):
    with slurm(tmp_path_factory.mktemp("slurm")) as conf:
        yield conf


@pytest.fixture
def cluster(daemons, tmp_path):
    """Return a cluster file whose nodes share this test's folder."""
    file = tmp_path / "cluster.yaml"
    mark = os.environ.get("AUTOTUNE_CONTRACT", uuid.uuid4().hex)
    file.write_text(FILE.format(shared=tmp_path, python=sys.executable, path=ROOT, mark=mark))
    return file
