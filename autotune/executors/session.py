"""What runs the probes and traces of a run: this machine's executor, or jobs on the cluster that its spec names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autotune.cluster import ClusterTarget
from autotune.errors import InputError
from autotune.executors import find
from autotune.executors.cluster import ClusterExecutor, ClusterTracer, Sites
from autotune.executors.executor import Executor
from autotune.executors.jobs import Jobs
from autotune.executors.ray import RayScheduler
from autotune.executors.scheduler import Scheduler, SchedulerError
from autotune.executors.slurm import SlurmScheduler
from autotune.probe.warm import launcher_by_name
from autotune.specs import RunSpec
from autotune.tracing.client import Tracer


@contextmanager
def executing(spec: RunSpec, root: Path, sites: Sites | None = None) -> Iterator[tuple[Executor, Tracer]]:
    """Give the executor and the tracer of a run whose folder is `root`; what they hold ends with the body.

    Runs of a sweep may share what they know of partitions (`sites`). Raises InputError where the folder is not in what
    a cluster shares, and what `find` raises.
    """
    if spec.cluster is None:
        with launcher_by_name(spec.launcher) as launcher:
            tracer = find.find_tracer(spec.device, launcher, gpus=spec.goal.gpus)
            ranks = spec.goal.gpus, spec.goal.nodes
            yield find.find_executor(spec.device, tracer, *ranks, launcher, spec.model.command), tracer
        return
    target, root = spec.cluster, root.absolute()
    if not root.resolve().is_relative_to(Path(target.shared).resolve()):
        raise InputError(
            f"--runs: the run's folder {root} is not in {target.shared}, the folder that the cluster's nodes share; "
            f"write runs there: --runs {target.shared}/runs",
            about="runs",
        )
    jobs = Jobs(find_scheduler(target), root)
    try:
        yield (
            ClusterExecutor(target, jobs, spec.device, root, spec.goal.gpus, spec.goal.nodes, sites),
            ClusterTracer(target, jobs, spec.device),
        )
    finally:
        with suppress(SchedulerError):  # then the next start of the run does
            jobs.cancel_strays()


def find_scheduler(target: ClusterTarget) -> Scheduler:
    """Return what starts jobs in a partition."""
    return RayScheduler(target) if target.engine == "ray" else SlurmScheduler(target)
