"""A run as it goes on, told from its journal: what `autotune watch` shows in another shell than the run's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from autotune.commands import command
from autotune.reporting.live import NowLine
from autotune.reporting.tables import section, trial_line, trial_table
from autotune.reporting.time_left import time_left
from autotune.run.events import ProofStarted, RematchStarted, Searched, Started
from autotune.run.folder import load_spec
from autotune.run.journal import read_record
from autotune.run.paths import RunPaths
from autotune.run.record import Record
from autotune.run.sealed_lines import holder
from autotune.run.under_way import under_way
from autotune.search.context import SearchContext
from autotune.units import format_counted

POLL = 0.5
"""Seconds between two looks at the journal."""

Ended = Literal["decided", "interrupted"]


class Watching:
    """Follows the journal of one run until it is decided, or no tuner works on it any more. Changes nothing there."""

    def __init__(self, paths: RunPaths, console: Console) -> None:
        """Read what was asked for. Raises InputError where that cannot be used."""
        self._paths = paths
        self._console = console
        self._spec = load_spec(paths)
        self._size = -1
        self._record = Record.of(())
        self._context: SearchContext | None = None
        self._told = 0
        self._line = NowLine()

    def follow(self, wait: Callable[[float], None] = time.sleep) -> Ended:
        """Show the run until it ends, and return how. Raises JournalError where its record is damaged."""
        if not self._console.is_terminal:
            return self._follow(wait)
        with Live(
            get_renderable=self.view, console=self._console, refresh_per_second=4, transient=True,
            vertical_overflow="visible",
        ):  # fmt: skip
            return self._follow(wait)

    def _follow(self, wait: Callable[[float], None]) -> Ended:
        while True:
            # Asked first: what it wrote last is read all the same.
            running = holder(self._paths.lock) is not None
            self.look()
            if self._record.decided is not None:
                return "decided"
            if not running:
                return "interrupted"
            wait(POLL)

    def look(self) -> None:
        """Read the journal, if it has grown; print finished probes where nothing is drawn anew."""
        if not self._paths.journal.exists():
            return
        size = self._paths.journal.stat().st_size
        if size == self._size:
            return
        self._size, self._record = size, read_record(self._paths.journal)
        inspection = self._record.inspection
        if inspection is not None and self._context is None:
            self._context = SearchContext.of(self._spec, inspection.facts, inspection.budget)
        if self._console.is_terminal or self._context is None:
            return
        for trial in self._record.history[self._told :]:
            self._console.print(trial_line(trial, self._context), soft_wrap=True)
        self._told = len(self._record.history)

    def view(self) -> RenderableType:
        """Return what the window shows now."""
        spec, record = self._spec, self._record
        parts: list[RenderableType] = [
            Text(
                f"{self._paths.id}: {spec.model.name} on {spec.device}, {spec.goal.target} a step",
                style="bold",
            )
        ]
        trials = record.history
        if self._context is not None and trials:
            # As tall as the window, or it could not be drawn anew in place.
            most = max(3, (self._console.height - 8) // 2)
            if (earlier := len(trials) - most) > 0:
                parts.append(Text(f"{format_counted(earlier, 'earlier probe')} above", style="dim"))
            parts.append(trial_table(trials[-most:], self._context))
        parts.append(self._line.say(under_way(record)))
        ahead, proving = ahead_of(record)
        if left := time_left(spec, trials, ahead, self._elapsed(), proving):
            parts.append(Text(f"  {left}", style="dim"))
        return Group(*parts)

    def _elapsed(self) -> float:
        """Return the seconds since the journal's last line that has a time."""
        times = (getattr(entry, "time", None) for entry in reversed(self._record.entries))
        began = next((found for found in times if found), None)
        if began is None:
            return 0.0
        return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(began)).total_seconds())


def ahead_of(record: Record) -> tuple[int, bool]:
    """Return how many probes are still to come, about, by the last lines of a journal, and whether a proof runs."""
    for entry in reversed(record.entries):
        match entry:
            case ProofStarted():
                return 0, True
            case RematchStarted(number=number, finalists=finalists):
                over = not record.is_under_way("rematch", number)
                return len(finalists) - finalists.index(number) - over, False
            case Searched():
                return 0, False
            case Started(number=number, ahead=ahead):
                return max(0, ahead - (not record.is_under_way("probe", number))), False
    return 0, False


def stopped_line(paths: RunPaths) -> RenderableType:
    """Return what is said of a run that no tuner works on, and that is not decided."""
    return section(
        "Not finished",
        [Text("no process works on this run; go on with:"), Text(command("resume", paths.root))],
    )
