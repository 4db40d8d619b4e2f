"""What the loop needs of whatever runs probes: here on this machine, elsewhere, or made up in a test.

Everything that it answers is plain data that survives JSON, so that an executor may ask a process on another machine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pydantic import Field

from autotune.candidate import OffloadPlace
from autotune.outcome import Outcome
from autotune.probe.protocol import Inspection, ProbeRequest, Progress
from autotune.site import Site
from autotune.validation import Frozen


class ProbeResult(Frozen):
    """What came of one request, and under what it ran."""

    answer: Outcome | Inspection
    baseline: int | None = None
    """Bytes taken before the model was built, where the worker came that far."""
    seconds: float
    """Wall time from launch to the last process gone."""
    leftovers: int = 0
    """Processes that the worker left behind and that had to be killed."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables that the executor set for the probe, and that training should have too."""
    written: tuple[str, ...] = ()
    """Files that a command of the user's own wrote outside of its scratch folder, and that nothing removes."""
    site: Site | None = None
    """Where it ran; None where that is what `Executor.describe` said."""


class Executor(Protocol):
    """Runs one request at a time to its verdict. When `run` returns or raises, nothing of it is left."""

    def describe(self) -> Site:
        """Return the device that probes run on, and the machine that it is in. Each start of a tuner asks once.

        It need not be this machine: what a candidate is refused for, and what `best.yaml` says of versions and
        device, follows from this answer alone.
        """
        ...

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:
        """Return the bytes of host memory, or of the disk that probes of `folder` write to, that are free there now."""
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

        Raises ProbeError when nothing could be launched, DeviceBusy when the device is not free, and NoDiskSpace when a
        full disk stopped the probe, from which nothing follows.
        """
        ...
