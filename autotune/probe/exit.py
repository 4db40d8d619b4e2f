"""How a probe's process tree ended, as its supervisor saw it, and all that was seen of one launch."""

from __future__ import annotations

import signal
from typing import Annotated

from pydantic import Field

from autotune.options import LauncherName
from autotune.probe.protocol import DiskFull, Inspection, Progress, Result, TraceAnswer
from autotune.validation import Frozen


class Exit(Frozen):
    """The supervisor's report on the worker and everything below it. Memory in bytes, time in seconds."""

    exit_code: int | None = None
    """None when a signal ended the worker."""
    signal: int | None = None
    timed_out: bool = False
    """Killed by the supervisor at the deadline."""
    stopped: bool = False
    """Killed by the supervisor because the tuner said so, or was gone."""
    halted: bool = False
    """Killed by the supervisor because something else had stopped the worker (SIGSTOP)."""
    since: float = 0.0
    """The earliest moment at which its end can have begun, in seconds of the machine's monotonic clock: the
    deadline for a worker that was killed there, for others the last at which the supervisor saw it alive."""
    seconds: float
    """From the start of the worker until the last process of the tree was gone."""
    leftovers: int = 0
    """Processes that were still alive below the worker when it ended (or was killed)."""
    survivors: tuple[int, ...] = ()
    """Processes that SIGKILL did not end (they hang in the kernel)."""
    max_rss: int = 0
    """Largest resident set of the worker, from its resource usage."""
    data_peak: int = 0
    """Largest private memory (what RLIMIT_DATA counts) among the samples taken of the worker."""
    data_recent: int = 0
    """The same over the worker's last quarter of a second."""
    oom_kills: int | None = None
    """Processes that the kernel killed for memory in this cgroup meanwhile; None where it does not count."""

    def describe(self) -> str:
        """Return the ending in words: `exit code 3`, `SIGSEGV`."""
        if self.signal is not None:
            return (
                signal.Signals(self.signal).name
                if self.signal in set(signal.Signals)
                else f"signal {self.signal}"
            )
        return f"exit code {self.exit_code}"


class Report(Frozen):
    """All that was seen of one launch; stored as `result.json`."""

    answer: Annotated[Result | Inspection | TraceAnswer | DiskFull, Field(discriminator="type")] | None = None
    """The worker's own last word, or None when it gave none."""
    progress: Progress | None = None
    """The last phase that the worker entered."""
    baseline: int | None = None
    """Bytes taken before the model was built, as the worker reported them."""
    violations: tuple[str, ...] = ()
    """What came over the result pipe that the protocol does not know; the first few."""
    ending: Exit | None = None
    """None when the supervisor itself was killed: then nothing is known of the worker's end."""
    seconds: float
    """Wall time of the launch, from the supervisor's start to its end."""
    stderr_tail: str = ""
    """Last lines of the worker's standard error, for people."""
    launcher: LauncherName = "cold"
    """How the worker was started: the wall time of a warm one leaves out imports."""
    cold_because: str = ""
    """Why it was not started warm, where that was asked for."""

    def failing_since(self) -> float:
        """Return the earliest moment at which what ended this launch can have begun; 0 where nobody saw it.

        In seconds of the machine's monotonic clock, as worker and supervisor read it. Reports of processes that waited
        for each other can be put in order by it, however late they arrived.
        """
        if isinstance(self.answer, Result) and self.answer.since is not None:
            return self.answer.since
        return self.ending.since if self.ending is not None else 0.0
