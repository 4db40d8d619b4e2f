"""A real Slurm of two nodes for the tests of this folder, and its cluster file."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import pytest

from tests.cluster.daemons import slurm

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
