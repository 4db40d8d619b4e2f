"""What changed in a night, as records."""

from __future__ import annotations

from typing import Literal

from autotune.exit_codes import ExitCode
from autotune.results.row import CellRow, CellState
from autotune.results.thresholds import Thresholds
from autotune.validation import Frozen

Kind = Literal["oom", "failed", "peak", "throughput", "winner"]
KINDS: dict[Kind, str] = {
    "oom": "out of memory", "failed": "no winner", "peak": "larger", "throughput": "slower", "winner": "other winner",
}  # fmt: skip
"""Each kind of change in a word or two."""


class NightChange(Frozen):
    """One difference between a cell's night and the nights before it."""

    cell: str
    kind: Kind
    regressed: bool
    """Whether it is a regression; else it is only told."""
    what: str
    """One sentence, with both numbers."""
    candidate: str = ""
    """Title of the candidate that it is about."""
    before: float | None = None
    """Bytes, or tokens per second; None for what is no number."""
    now: float | None = None
    against: str
    """The night that it is compared with."""
    nights: int = 1
    """Good nights of which `before` is the median; 1 where it is one night's."""
    chance: float | None = None
    """Of at least that in a night without a change; None where noise plays no part."""
    beside: tuple[str, ...] = ()
    """What else is different since that night: model, budget, device, driver, versions."""


class Uncompared(Frozen):
    """A cell of which nothing can be said."""

    cell: str
    state: CellState
    why: str


class NightComparison(Frozen):
    """All that changed in a night."""

    sweep: str
    night: str
    thresholds: Thresholds
    cells: tuple[CellRow, ...]
    """The night's, by cell."""
    changes: tuple[NightChange, ...] = ()
    """By cell."""
    uncompared: tuple[Uncompared, ...] = ()

    @property
    def regressions(self) -> tuple[NightChange, ...]:
        """Return the changes that are regressions."""
        return tuple(change for change in self.changes if change.regressed)

    @property
    def exit_code(self) -> ExitCode:
        """Return 5 where something regressed, else 0."""
        return ExitCode.REGRESSION if self.regressions else ExitCode.OK
