"""Probes of models that behave as they are told, and what tests of every engine do to them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from autotune.cluster import Cluster
from autotune.executors.cluster import ClusterExecutor
from autotune.executors.jobs import Jobs
from autotune.executors.orders import JobFolder
from autotune.executors.session import find_scheduler
from autotune.models.resolve import resolve
from autotune.specs import DeviceSpec
from autotune.units import GIB
from tests.contracts.test_executors import make_request

BEHAVING = Path(__file__).parents[1] / "data" / "behaving.py"
DEVICE = DeviceSpec.parse("cpu:1GiB")
MODELS = {"trains": "trains", "hangs": "hangs", "leaves a process": "leaves"}
"""Functions of BEHAVING, by what the executors' contract asks of a worker."""
LONG = 600.0
"""Seconds that whatever comes by itself gets: never spent, however slow the machine."""


def wait_for(condition, seconds=LONG):
    """Return what the condition does, as soon as that is true."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.1)
    return found


def go(cluster):
    """Have the models train that wait until they are told."""
    (cluster.parent / "go").touch()


def executor_of(cluster, name="small", gpus=1, nodes=1):
    """Return what runs probes in a partition; a probe's folder is below `probe`, beside the cluster file."""
    target = Cluster.read(cluster).target(name)
    root = cluster.parent / "probe"
    return ClusterExecutor(target, Jobs(find_scheduler(target), root), DEVICE, root, gpus, nodes)


def request(model, kind="train", ranks=1, nodes=1, **candidate):
    """Return a request of a function of BEHAVING."""
    found = make_request(kind, ranks, **candidate)
    resolved = resolve(f"{BEHAVING}:{model}", base=BEHAVING.parent)
    return found.model_copy(update={"model": resolved, "nodes": nodes, "budget": GIB})


def training(folder, attempt=1):
    """Wait until a worker of an attempt has said something; return its job."""
    job = JobFolder(folder / f"job{attempt}")
    wait_for(lambda: job.progress.exists() and job.progress.stat().st_size)
    return job


@contextmanager
def started(*arguments, **options):
    """Start autotune, and end it with the body."""
    program = Path(sys.executable).parent / "autotune"
    command = subprocess.Popen(
        [str(program), *map(str, arguments)], text=True, **{"stdout": subprocess.PIPE, **options}
    )
    try:
        yield command
    finally:
        if command.poll() is None:
            command.terminate()  # what it started on the cluster ends with it
            command.communicate(timeout=LONG)


class Running:
    """A request under way in a thread."""

    def __init__(self, executor, asked, folder):
        self.folder = folder
        self.answer = None
        self._thread = threading.Thread(target=self._run, args=(executor, asked), daemon=True)
        self._thread.start()

    def _run(self, executor, asked):
        self.answer = executor.run(asked, self.folder, timeout=LONG).answer

    def ended(self):
        """Wait for its end; return what it came to."""
        self._thread.join(LONG)
        return self.answer
