"""A scheduler that does what a script says, and runs the node's program in this process: no daemon, no waiting."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune.executors.scheduler import Job, JobState, Listing, SchedulerError

Happening = Callable[[Job], JobState | None]
"""What becomes of a job when it is submitted: the state in which it ends up; None for one that goes on."""


class ScriptedScheduler:
    """Each job that is submitted meets the next of `script`; the last one repeats."""

    def __init__(self, *script: Happening) -> None:
        self.script = list(script)
        self.submitted: list[Job] = []
        self.cancelled: list[str] = []
        self.states: dict[str, JobState] = {}
        self.refuses_exclusion = False
        self.out_of_reach = 0
        """Questions that are not answered before the next that is."""

    def submit(self, job: Job) -> str:
        self._reach()
        if job.exclude and self.refuses_exclusion:
            raise SchedulerError("Requested node configuration is not available", refused=True)
        self.submitted.append(job)
        id_ = str(100 + len(self.submitted))
        happening = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.states[id_] = happening(job) or JobState(job.name, running=True)
        return id_

    def listing(self) -> Listing:
        self._reach()
        return Listing(time.monotonic(), dict(self.states))

    def cancel(self, ids) -> None:
        self.cancelled += ids
        for id_ in ids:
            if self.states[id_].end is None:
                self.states[id_] = JobState(self.states[id_].name, "cancelled")

    def _reach(self) -> None:
        if self.out_of_reach:
            self.out_of_reach -= 1
            raise SchedulerError("Unable to contact slurm controller")


def ends(end, *nodes, starts=True):
    """Have a job end so, without an answer."""

    def happen(job):
        if starts:
            job.folder.started.write_text("n1 1\n")
        return JobState(job.name, end, nodes=nodes)

    return happen


def goes_on(job):
    """Have a job run on."""
    job.folder.started.write_text("n1 1\n")


def answers(answer):
    """Have a job answer, and end."""

    def happen(job):
        job.folder.started.write_text("n1 1\n")
        job.folder.write(job.folder.answer, answer)
        return JobState(job.name, "completed", nodes=("n1",))

    return happen
