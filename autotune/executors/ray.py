"""Ray as a scheduler: jobs are detached actors, which outlive the tuner and are found again by their names.

Ray's own library runs in a process beside the tuner (`ray_driver`): it prints, takes signals and ends its process where
the cluster goes, and none of that may befall a tuner.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection
from importlib.util import find_spec
from typing import IO, Any

from autotune.cluster import ClusterTarget
from autotune.executors.orders import End
from autotune.executors.scheduler import Job, JobState, Listing, SchedulerError


class RayScheduler:
    """The scheduler of a Ray cluster, for jobs of one partition."""

    def __init__(self, target: ClusterTarget) -> None:
        self._target = target
        self._driver = _driver(target.address, target.poll)

    def submit(self, job: Job) -> str:
        """Start the actor of a job, which waits for its resources; its name is its number.

        `exclude` is not needed: a node that failed has left Ray's cluster.
        """
        self._driver.ask(do="submit", **plan(self._target, job))
        return job.name

    def listing(self) -> Listing:
        """Return all jobs in Ray's namespace of autotune."""
        return self._driver.listing()

    def cancel(self, ids: Collection[str]) -> None:
        """End the node's program of each job, and with it the probe."""
        self._driver.ask(do="cancel", names=sorted(ids))


def plan(target: ClusterTarget, job: Job) -> dict[str, Any]:
    """Return what the driver needs of a job: what each node's program takes, and its command line. Pure."""
    order = job.order
    ranks = max(1, order.devices_per_node)
    takes = {"CPU": float((target.cpus or 1) * ranks)}
    if target.gpus and order.devices_per_node:
        takes["GPU"] = target.gpus * ranks
    takes |= {name: share * ranks for name, share in target.resources.items()}
    program = [target.python, "-P", "-m", "autotune.executors.node", str(job.folder.root)]
    return {
        "name": job.name,
        "takes": takes,
        "commands": [[*program, f"--node={node}"] for node in range(order.spans)],
        "environment": target.environment,
        "folder": str(job.folder.root),
        "log": str(job.folder.log),
    }


class _Driver:
    """The process that speaks with one cluster, started when it is asked and started again when it died."""

    def __init__(self, address: str, poll: float) -> None:
        self._address = address
        self._poll = poll
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._said: IO[str] | None = None
        self._reached = False
        self._last: Listing | None = None

    def listing(self) -> Listing:
        """Return the jobs, asked for no more often than every `poll` seconds."""
        with self._lock:
            if self._last is None or time.monotonic() - self._last.at >= self._poll:
                at = time.monotonic()
                self._last = Listing(at, read_jobs(self._ask(do="list")))
            return self._last

    def ask(self, **request: Any) -> Any:
        with self._lock:
            return self._ask(**request)

    def _ask(self, **request: Any) -> Any:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BaseException as error:  # an answer that is not read would be the next request's
            process.kill()
            process.wait()
            self._process = None
            if isinstance(error, OSError):
                raise self._ended() from None
            raise
        if not answer:
            process.wait()
            self._process = None
            raise self._ended()
        self._reached = True
        told = json.loads(answer)
        if "error" in told:
            raise SchedulerError(f"Ray at {self._address}: {told['error']}", refused=told["refused"])
        return told["answer"]

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        if find_spec("ray") is None:
            raise SchedulerError(
                "Ray is not installed here, which --cluster with engine ray needs: pip install 'autotune[ray]'",
                refused=True,
            )
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "autotune.executors.ray_driver", self._address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True, start_new_session=True,
        )  # fmt: skip
        return self._process

    def _ended(self) -> SchedulerError:
        said = ""
        if self._said is not None:
            self._said.seek(0)
            said = self._said.read().strip()[-2000:]
            self._said.close()
        message = f"no connection with Ray at {self._address}: {said or 'its driver was killed'}"
        # A cluster that was there before may come again; one that never was is a mistake in the file.
        return SchedulerError(message, refused=not self._reached)


def read_jobs(told: dict[str, dict[str, Any]]) -> dict[str, JobState]:
    """Return jobs by their numbers from what the driver says. Pure."""
    jobs = {}
    for name, one in told.items():
        end: End | None = one["end"]
        jobs[name] = JobState(name, end, running=one["running"], nodes=tuple(one["nodes"]), why=one["why"])
    return jobs


_DRIVERS: dict[tuple[str, float], _Driver] = {}
_DRIVERS_LOCK = threading.Lock()


def _driver(address: str, poll: float) -> _Driver:
    """Return the one that all runs of this process share."""
    with _DRIVERS_LOCK:
        return _DRIVERS.setdefault((address, poll), _Driver(address, poll))
