"""Jobs of a run on a cluster, whatever schedules them: submit, wait, find again by name, cancel.

What came of a job is in its folder. The scheduler is asked only whether a job without an answer still lives, by its own
list of jobs; no accounting is needed. A tuner that was killed leaves its jobs running: the next one finds them by their
names, waits for what it would ask again, and cancels the others.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from autotune.errors import ProbeError
from autotune.executors.orders import (
    Answer,
    Failed,
    JobEnded,
    JobFolder,
    JobOrder,
    Probed,
    ProgressTail,
    Submitted,
)
from autotune.executors.scheduler import PREFIX, Job, JobState, Listing, Scheduler, SchedulerError
from autotune.interruption import shielded
from autotune.outcome import Lost
from autotune.probe.launch import ended_by_all
from autotune.probe.protocol import Progress

LOOK = 0.1
"""Seconds between two looks into a job's folder."""
SETTLE = 10.0
"""Seconds that a shared disk gets to show the answer of a job that has ended."""
ENDING = 90.0
"""Seconds that a job which was cancelled gets to be gone."""
SILENCE = 600.0
"""Seconds for which a scheduler may be out of reach (its daemon starts anew) before that is an error."""
PREEMPTIONS = 20
"""Times that one request is submitted again because other jobs took its place. That says nothing of it and counts as no
try, but something is wrong where it never ends."""


class Jobs:
    """The jobs of one run, of which one is waited for at a time by each thread."""

    def __init__(
        self, scheduler: Scheduler, root: Path, *, settle: float = SETTLE, ending: float = ENDING
    ) -> None:
        """`root` is the run's folder, on a disk that the nodes share: its path is in the names of its jobs."""
        self._scheduler = scheduler
        digest = hashlib.sha256(str(root.absolute()).encode()).hexdigest()[:12]
        self.prefix = f"{PREFIX}{digest}-"
        self._settle = settle
        self._ending = ending
        self._own: set[str] = set()
        """Numbers of the jobs that somebody here waits for, or has waited for to their end."""
        self._failed_nodes: set[str] = set()
        self._lock = threading.Lock()

    def ask(
        self,
        order: JobOrder,
        folder: Path,
        on_progress: Callable[[Progress], None] | None = None,
        fresh: bool = False,
    ) -> Answer | JobEnded:
        """Have an order done by a job and return its answer, or how the job ended without one.

        The attempts of earlier tuners, which lie in `folder`, count: an answer to the same order is returned as it is
        (unless it says that something ended the probe), a job that still works at it is waited for, and one that works
        at another is cancelled, unless no more is asked than what a node is: that is how a tuner begins, and what it
        asks next may be what the job works at. With `fresh` an answer that is there already does not do. Returned or
        raised, no job of the order is left. Raises ProbeError, and what `on_progress` raises.
        """
        folder = folder.absolute()
        for _ in range(PREEMPTIONS):
            job = next(
                (job for job in reversed(JobFolder.existing(folder)) if job.read_order() == order), None
            )
            if job is not None and not fresh and (answer := job.read_answer()) and _stands(answer):
                return answer
            id_ = self._living(job) if job is not None else None
            if job is not None and id_ is not None and id_ not in self._listing().jobs:
                # It ended while no tuner looked, longer ago than schedulers remember, or with the tuner that asked.
                said = self._without_answer(job, _gone(), ProgressTail(job.progress))
                if not isinstance(said, JobEnded) and _stands(said):
                    return said
                id_ = None
            if job is None or id_ is None:
                job, id_ = self._submit(order, folder)
            found = self._wait(job, id_, order, on_progress)
            if not isinstance(found, JobEnded) or found.end != "preempted":
                break
        if isinstance(found, JobEnded) and found.end == "node":
            with self._lock:
                self._failed_nodes.update(found.nodes)
        return found

    def cancel_strays(self) -> None:
        """Cancel jobs of this run that nobody here waits for: what a tuner that was killed left running."""
        listing = self._scheduler.listing()
        with self._lock:
            strays = [
                id_
                for id_, state in listing.jobs.items()
                if state.name.startswith(self.prefix) and state.end is None and id_ not in self._own
            ]
        if strays:
            self._scheduler.cancel(strays)

    def _living(self, job: JobFolder) -> str | None:
        """Return the number of the job that works at an attempt; None where it has ended, or never began."""
        if job.answer.exists() or job.ended.exists():
            return None
        submitted = job.read_submitted()
        if submitted is not None:
            return submitted.id
        order = job.read_order()
        if order is None or (id_ := self._named(self._name(order, job))) is None:
            return None
        job.write(job.submitted, Submitted(id=id_, name=self._name(order, job)))
        return id_  # a tuner was killed between submitting the job and noting its number

    def _named(self, name: str) -> str | None:
        """Return the number of the living job of a name."""
        jobs = self._scheduler.listing().jobs
        return next((id_ for id_, state in jobs.items() if state.name == name and state.end is None), None)

    def _submit(self, order: JobOrder, folder: Path) -> tuple[JobFolder, str]:
        attempts = JobFolder.existing(folder)
        job = attempts[-1].following() if attempts else JobFolder(folder / "job1")
        ended = [found for attempt in attempts if (found := attempt.read_ended()) is not None]
        with self._lock:
            exclude = self._failed_nodes.union(*(one.nodes for one in ended if one.end == "node"))
        try:
            job.root.mkdir(parents=True)
            job.write(job.order, order)
        except OSError as error:
            raise ProbeError(f"the job's folder cannot be written: {error}") from error
        name = self._name(order, job)
        with shielded():  # a job that was submitted is known, so that it can be cancelled
            try:
                id_ = self._started(Job(name, job, order, frozenset(exclude)))
            except SchedulerError as error:
                if not exclude or not error.refused:
                    raise
                id_ = self._started(Job(name, job, order))  # no other node is left
            with self._lock:
                self._own.add(id_)
            job.write(job.submitted, Submitted(id=id_, name=name))
        return job, id_

    def _started(self, job: Job) -> str:
        """Submit a job, again where the scheduler was out of reach."""
        until = time.monotonic() + SILENCE
        while True:
            try:
                return self._scheduler.submit(job)
            except SchedulerError as error:
                if error.refused or time.monotonic() >= until:
                    raise
            time.sleep(1.0)
            with suppress(SchedulerError):
                if (id_ := self._named(job.name)) is not None:  # it was heard, and its answer was not
                    return id_

    def _name(self, order: JobOrder, job: JobFolder) -> str:
        return f"{self.prefix}{order.digest()}-{job.number}"

    def _wait(
        self, job: JobFolder, id_: str, order: JobOrder, on_progress: Callable[[Progress], None] | None
    ) -> Answer | JobEnded:
        with self._lock:
            self._own.add(id_)
        if order.kind != "describe":
            with suppress(SchedulerError):  # the next job's turn, or the end's
                self.cancel_strays()
        since = time.monotonic()
        stop = threading.Event()
        said = ProgressTail(job.progress)
        try:
            with ended_by_all(stop.set):
                while True:
                    for progress in said.read():
                        if on_progress is not None:
                            on_progress(progress)
                    if (answer := job.read_answer()) is not None:
                        if isinstance(answer, Failed) and order.spans > 1:
                            with suppress(SchedulerError):
                                self._end(job, id_)  # one node said so, and the others' parts go on
                        return self._delivered(job, answer)
                    if stop.is_set():
                        self._end(job, id_)
                        state = JobState("", "cancelled", why="autotune was told to end")
                    else:
                        state = self._state(id_, since)
                    if state.never:
                        raise SchedulerError(
                            f"the scheduler will never start job {id_}: {state.why}; change the partition's keys in "
                            "the cluster file, or what is asked for",
                            refused=True,
                        )
                    if state.end is not None:
                        return self._without_answer(job, state, said)
                    stop.wait(LOOK)
        except BaseException:
            with shielded(), suppress(SchedulerError):
                self._end(job, id_)
            raise

    def _state(self, id_: str, since: float) -> JobState:
        """Return what the scheduler says of a job; one that it does not list any more is gone."""
        listing = self._listing()
        if id_ in listing.jobs:
            return listing.jobs[id_]
        return JobState("") if listing.at <= since else _gone()  # the list may be older than the job

    def _listing(self) -> Listing:
        """Return the scheduler's jobs, and wait for it where it is out of reach for a while."""
        until = time.monotonic() + SILENCE
        while True:
            try:
                return self._scheduler.listing()
            except SchedulerError:
                if time.monotonic() >= until:
                    raise
                time.sleep(1.0)

    def _delivered(self, job: JobFolder, answer: Answer) -> Answer:
        """Put what a probe left for people where they look for it."""
        if job.probe.is_dir():
            for path in job.probe.iterdir():
                target = job.root.parent / path.name
                if target.is_dir():
                    shutil.rmtree(target, ignore_errors=True)
                path.replace(target)
            shutil.rmtree(job.probe, ignore_errors=True)
        return answer

    def _without_answer(self, job: JobFolder, state: JobState, said: ProgressTail) -> Answer | JobEnded:
        """Return the answer that was written last, once the disk shows it; else how the job ended."""
        assert state.end is not None
        until = time.monotonic() + self._settle
        while (answer := job.read_answer()) is None and time.monotonic() < until:
            time.sleep(LOOK)
        if answer is not None:
            return self._delivered(job, answer)
        said.read()
        # A scheduler that polls memory does not say so.
        killed = state.end == "failed" and job.memory.exists()
        ended = JobEnded(
            end="memory" if killed else state.end, nodes=state.nodes, why=state.why, started=job.started.exists(),
            phase=said.last.phase if said.last is not None else "start",
        )  # fmt: skip
        self._clear(job)
        job.write(job.ended, ended)
        return ended

    def _end(self, job: JobFolder, id_: str) -> None:
        """Cancel a job and wait until it is gone, so that nothing of it is left."""
        self._scheduler.cancel([id_])
        since = time.monotonic()
        while time.monotonic() < since + self._ending:
            listing = self._scheduler.listing()
            state = listing.jobs.get(id_)
            if listing.at > since and (state is None or state.end is not None):
                break
            time.sleep(LOOK)
        if job.read_answer() is None:
            job.write(job.ended, JobEnded(end="cancelled", why="autotune cancelled it"))
        self._clear(job)

    def _clear(self, job: JobFolder) -> None:
        """Remove what the probe of a job that is gone wrote: its mapped files can be many GiB."""
        for place in (job.probe, *job.probe.glob("rank*")):
            shutil.rmtree(place / "scratch", ignore_errors=True)


def log_tail(job: JobFolder, most: int = 4096) -> str:
    """Return the end of what a job wrote to its standard output and error."""
    try:
        with job.log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - most))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def newest_job(folder: Path) -> JobFolder | None:
    """Return the newest attempt in a folder."""
    attempts = JobFolder.existing(folder.absolute())
    return attempts[-1] if attempts else None


def _gone() -> JobState:
    return JobState("", "gone", why="the scheduler does not know it any more")


def _stands(answer: Answer) -> bool:
    """Tell whether an answer of an earlier attempt is to be taken: neither an error nor what something ended."""
    if isinstance(answer, Probed):
        return not isinstance(answer.result.answer, Lost)
    return answer.kind != "failed"
