"""What the loop needs of whatever runs probes: here on this machine, elsewhere, or made up in a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.candidate import Candidate, OffloadPlace
from autotune.outcome import Outcome
from autotune.probe.protocol import Inspection, ProbeRequest, Progress
from autotune.specs import DeviceFacts


@dataclass(frozen=True)
class ProbeResult:
    """What came of one request."""

    answer: Outcome | Inspection
    baseline: int | None
    """Bytes taken before the model was built, where the worker came that far."""
    seconds: float
    """Wall time from launch to the last process gone."""
    leftovers: int = 0
    """Processes that the worker left behind and that had to be killed."""


class Executor(Protocol):
    """Runs one request at a time to its verdict. When `run` returns or raises, nothing of it is left."""

    @property
    def facts(self) -> DeviceFacts:
        """The device that probes run on."""
        ...

    def environment(self, candidate: Candidate) -> dict[str, str]:
        """Return the environment variables that a probe of this candidate runs under."""
        ...

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:
        """Return the bytes of host memory, or of the disk that holds `folder`, that offloading may use."""
        ...

    def run(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ProbeResult:
        """Run a request, with `folder` as the probe's own. `request.folder` is filled in here.

        Raises ProbeError when nothing could be launched, and DeviceBusy when the device is not free.
        """
        ...
