"""Slurm through its own commands: sbatch, squeue, scancel. No accounting (sacct) and no library is needed.

submitit was tried and left: it waits for a state that it asks of sacct, so a job that is killed for memory never ends
for it where there is no accounting; it hands functions over as pickles; and it polls each job by itself.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from autotune.cluster import ClusterTarget
from autotune.executors.orders import End
from autotune.executors.scheduler import PREFIX, Job, JobState, Listing, SchedulerError
from autotune.probe.folder import write_atomically
from autotune.units import MIB

PATIENCE = 120.0
"""Seconds that a command of Slurm's may take; its own time-outs are shorter."""
ENDS: dict[str, End] = {
    "COMPLETED": "completed", "FAILED": "failed", "CANCELLED": "cancelled", "REVOKED": "cancelled",
    "TIMEOUT": "time limit", "DEADLINE": "time limit", "OUT_OF_MEMORY": "memory", "NODE_FAIL": "node",
    "BOOT_FAIL": "node", "PREEMPTED": "preempted",
}  # fmt: skip
"""States (`man squeue`, job state codes) in which a job has ended; in all others it goes on, or may."""
NEVER = frozenset({
    "AccountNotAllowed", "AssociationJobLimit", "BadConstraints", "InvalidAccount", "InvalidQOS", "PartitionNodeLimit",
    "PartitionTimeLimit", "QOSNotAllowed",
})  # fmt: skip
"""Reasons (`man squeue`, job reason codes) for which a job that waits will wait for ever."""


class SlurmScheduler:
    """The scheduler of the cluster that this login node belongs to, for jobs of one partition."""

    def __init__(self, target: ClusterTarget) -> None:
        self._target = target
        self._queue = _queue(target.poll)

    def submit(self, job: Job) -> str:
        """Write the job's script and hand it to sbatch."""
        write_atomically(job.folder.script, script(self._target, job))
        try:
            said = _run(["sbatch", *options(self._target, job), str(job.folder.script)])
        except SchedulerError as error:
            raise SchedulerError(str(error), refused=self._queue.reachable()) from None
        return said.strip().partition(";")[0]

    def listing(self) -> Listing:
        """Return all jobs of this user's, as squeue lists them."""
        return self._queue.listing()

    def cancel(self, ids: Collection[str]) -> None:
        """Have scancel end jobs: SIGTERM, and SIGKILL half a minute later."""
        _run(["scancel", "--quiet", *ids])


class _Queue:
    """What squeue says, asked once for all jobs and no more often than every `poll` seconds."""

    def __init__(self, poll: float) -> None:
        self._poll = poll
        self._lock = threading.Lock()
        self._last: Listing | None = None

    def listing(self) -> Listing:
        with self._lock:
            if self._last is None or time.monotonic() - self._last.at >= self._poll:
                at = time.monotonic()
                said = _run(["squeue", "--me", "--states=all", "--noheader", f"--format={FORMAT}"])
                self._last = Listing(at, read_queue(said))
            return self._last

    def reachable(self) -> bool:
        """Tell whether the scheduler answers now."""
        with self._lock:
            self._last = None
        try:
            self.listing()
        except SchedulerError:
            return False
        return True


FORMAT = "%i|%T|%N|%r|%j"
"""Number, state, nodes, reason and name of a job."""


def read_queue(said: str) -> dict[str, JobState]:
    """Return autotune's jobs by their numbers from what squeue printed. Pure."""
    jobs = {}
    for line in said.splitlines():
        id_, state, nodes, reason, name = line.split("|", 4)
        if name.startswith(PREFIX):
            jobs[id_] = JobState(
                name=name, end=ENDS.get(state), running=state == "RUNNING", nodes=(nodes,) if nodes else (),
                never=state == "PENDING" and reason in NEVER,
                why=state if reason in {"None", ""} else f"{state}, {reason}",
            )  # fmt: skip
    return jobs


def options(target: ClusterTarget, job: Job) -> list[str]:
    """Return sbatch's options for a job. Pure.

    It is never requeued by Slurm: what ended it, and so where it goes next, is the tuner's to know. Nothing of the
    tuner's environment goes with it, so that a run which is resumed from another shell has the same jobs.
    """
    order = job.order
    ranks = order.devices_per_node
    asked = {
        "--job-name": job.name,
        "--partition": target.partition or target.name,
        "--account": target.account,
        "--qos": target.qos,
        "--nodes": order.spans,
        "--ntasks-per-node": 1,
        "--cpus-per-task": target.cpus and _cpus(target, job),
        "--gres": f"{target.gres}:{ranks}" if target.gres and ranks else None,
        "--mem": target.memory and f"{-(-target.memory // MIB)}M",
        "--time": target.minutes(order.timeout),
        "--output": job.folder.log,
        "--error": job.folder.log,
        "--open-mode": "append",
        "--chdir": job.folder.root,
        "--export": "NONE",
        "--exclude": ",".join(sorted(job.exclude)) or None,
    }
    given = [f"{name}={value}" for name, value in asked.items() if value is not None]
    return ["--parsable", "--no-requeue", *given, *target.options]


def _cpus(target: ClusterTarget, job: Job) -> int:
    """Return the cores of a job on each node."""
    return (target.cpus or 1) * max(1, job.order.devices_per_node)


def script(target: ClusterTarget, job: Job) -> str:
    """Return what a job runs: the partition's own lines, its variables, and the node's program in their place. Pure."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in target.environment.items()]
    command = shlex.join(command_of(target, job))
    return "\n".join(["#!/bin/bash", *target.setup, *exports, f"exec {command}", ""])


def command_of(target: ClusterTarget, job: Job) -> list[str]:
    """Return the command line of the node's program, in its container, on each node of the job."""
    program = [target.python, "-P", "-m", "autotune.executors.node", str(job.folder.root)]
    pyxis = target.container is not None and target.container_runtime == "pyxis"
    if target.container is not None and not pyxis:
        program = [target.container_runtime, "exec", *target.container_options, target.container, *program]
    if job.order.spans == 1 and not pyxis:
        return program
    step = [
        "srun",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        f"--nodes={job.order.spans}",
        "--ntasks-per-node=1",
    ]
    if target.cpus is not None:  # from 22.05 on srun does not take that from sbatch
        step.append(f"--cpus-per-task={_cpus(target, job)}")
    if pyxis:
        step += [f"--container-image={target.container}", *target.container_options]
    return [*step, *program]


_QUEUES: dict[float, _Queue] = {}
_QUEUES_LOCK = threading.Lock()


def _queue(poll: float) -> _Queue:
    """Return the one that all runs of this process share: the cells of a sweep ask together."""
    with _QUEUES_LOCK:
        return _QUEUES.setdefault(poll, _Queue(poll))


def _run(command: Sequence[str | Path]) -> str:
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=PATIENCE, check=False,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise SchedulerError(
            f"there is no {command[0]} here: --cluster with engine slurm needs one of its login nodes",
            refused=True,
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SchedulerError(f"{command[0]}: {error}") from None
    if done.returncode:
        raise SchedulerError(f"{command[0]} failed: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout
