"""What a night says while it runs: a line for each cell that ends."""

from __future__ import annotations

from rich.console import Console

from autotune.sweep.controller import NightCallbacks
from autotune.sweep.events import CellEnded
from autotune.sweep.journal import NightRecord
from autotune.sweep.matrix import Cell
from autotune.sweep.night import NightPaths
from autotune.sweep.tables import STATES, cell_line


class NightLog(NightCallbacks):
    """Prints how cells end, with how many have."""

    def __init__(self, console: Console, cells: int) -> None:
        self._console = console
        self._cells = cells
        self.paths: NightPaths | None = None
        """The night; None before it has begun."""

    def opened(self, paths: NightPaths, record: NightRecord) -> None:
        """Say where the night is, and how many cells ended before, where some did."""
        self.paths = paths
        self._say(f"night {paths.root}", "dim")
        if record.ended:
            self._say(f"{len(record.ended):,} of {self._cells:,} cells ended before", "dim")

    def started(self, cell: Cell) -> None:
        """Say which cell begins."""
        self._say(f"{cell.id}: begins", "dim")

    def ended(self, entry: CellEnded, record: NightRecord) -> None:
        """Say how a cell ended."""
        text = f"[{len(record.ended):,}/{self._cells:,}] {cell_line(entry)}"
        self._say(text, STATES[entry.state][1])

    def untold(self, why: str) -> None:
        """Say that a file or a URL was not told what changed."""
        self._say(why, "yellow")

    def _say(self, text: str, style: str) -> None:
        self._console.print(text, style=style, soft_wrap=True)
