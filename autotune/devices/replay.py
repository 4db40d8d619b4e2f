"""A device that was measured before: its recorded grid answers for it, and nothing runs."""

from __future__ import annotations

from pathlib import Path

from autotune.candidate import Candidate, OffloadPlace
from autotune.devices.recorded_grid import RecordedGrid
from autotune.devices.unused import UnusedDevice
from autotune.specs import DeviceFacts


class ReplayDevice(UnusedDevice):
    """The device of a recorded grid, as it was when that was recorded."""

    def __init__(self, grid: RecordedGrid) -> None:
        self.grid = grid
        self._facts = grid.header.site.device.model_copy(update={"replayed": True})

    def facts(self) -> DeviceFacts:
        """Return what the device was, marked as replayed."""
        return self._facts

    def minimum(self) -> int:
        """Return what the framework took of it."""
        return self.grid.header.minimum

    def environment(self, candidate: Candidate) -> dict[str, str]:
        """Return the variables that this candidate was measured under; the plainest one's where it was not."""
        point = self.grid.points.get(candidate)
        return dict(point.variables if point else self.grid.header.variables)

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:  # noqa: ARG002  it has no folder
        """Return the host memory or the disk that was free when the grid was begun."""
        return self.grid.header.rooms[place]
