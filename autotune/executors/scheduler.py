"""What starts jobs on the nodes of a cluster, as `jobs` needs it: submit, list, cancel."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from autotune.errors import ProbeError
from autotune.executors.orders import End, JobFolder, JobOrder

PREFIX = "autotune-"
"""How the names of all jobs begin."""


class SchedulerError(ProbeError):
    """The scheduler refused a job, or cannot be reached."""

    def __init__(self, message: str, refused: bool = False) -> None:
        self.refused = refused
        """Whether it was reached and said no."""
        super().__init__(message)


@dataclass(frozen=True)
class Job:
    """What is to be started: the node's program, on as many nodes as its order spans."""

    name: str
    folder: JobFolder
    order: JobOrder
    exclude: frozenset[str] = frozenset()
    """Nodes that it is not to run on."""


@dataclass(frozen=True)
class JobState:
    """A job as its scheduler sees it."""

    name: str
    end: End | None = None
    """How it ended; None as long as it waits, runs, or is about to end."""
    running: bool = False
    nodes: tuple[str, ...] = ()
    never: bool = False
    """It waits for what will not come: nothing that it asked for can be had there."""
    why: str = ""
    """The scheduler's own words for state and reason, for people."""


@dataclass(frozen=True)
class Listing:
    """All jobs of the user's that a scheduler knows, by their numbers."""

    at: float
    """When it was asked for, on the monotonic clock."""
    jobs: Mapping[str, JobState] = field(default_factory=dict)


class Scheduler(Protocol):
    """Starts jobs on nodes. For several threads: the cells of a sweep share one."""

    def submit(self, job: Job) -> str:
        """Start a job as soon as there is room, and return its number. Raises SchedulerError."""
        ...

    def listing(self) -> Listing:
        """Return the jobs; one that is a few seconds old will do. Raises SchedulerError."""
        ...

    def cancel(self, ids: Collection[str]) -> None:
        """Have jobs end soon, whatever they do; those that are gone do not matter. Raises SchedulerError."""
        ...
