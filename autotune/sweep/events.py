"""The lines of a night's journal: what happened to its cells, in the order in which it did."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter

from autotune.results.changes import NightChange
from autotune.results.row import JUDGED, CellState
from autotune.specs import Evidence
from autotune.validation import Frozen

OPEN: frozenset[CellState] = frozenset(get_args(CellState)) - JUDGED
"""States that say nothing of the model: what a resumed night tries again."""


class NightAsked(Frozen):
    """What the night was asked for when it began: the sweep file, which must not change under it."""

    type: Literal["asked"] = "asked"
    sweep: dict[str, Any]
    """The keys of the file, as they were written."""
    source: str
    """Its path."""
    base: str
    """The folder at which its relative paths start."""
    digest: str
    """SHA-256 of the keys as JSON with sorted keys."""
    cells: tuple[str, ...]
    """The ids of the cells, in the order in which they start."""

    @classmethod
    def of(cls, sweep: dict[str, Any], source: str, base: str, cells: tuple[str, ...]) -> NightAsked:
        """Return the line for a file."""
        text = json.dumps(sweep, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return cls(sweep=sweep, source=source, base=base, digest=digest, cells=cells)


class NightOpened(Frozen):
    """A controller began (or went on) to work on the night."""

    type: Literal["opened"] = "opened"
    version: str
    """Of autotune."""
    machine: str
    """The host that it runs on."""
    time: str


class CellStarted(Frozen):
    """The run of a cell is about to begin, or to go on from its own journal."""

    type: Literal["cell_started"] = "cell_started"
    cell: str
    time: str


class Winner(Frozen):
    """What came of a cell's run, in short; its best.yaml says all."""

    key: str
    """Identity of the candidate (`Candidate.key`)."""
    title: str
    """What people call its rung."""
    micro_batch: int
    tokens_per_second: float
    interval: float | None = None
    """Half-width of the 95% interval of that."""
    peak: int
    """Bytes of the device."""
    evidence: Evidence


class CellEnded(Frozen):
    """The run of a cell has come to its end. None of the others depends on it."""

    type: Literal["cell_ended"] = "cell_ended"
    cell: str
    state: CellState
    why: str = ""
    """One sentence, where there is no winner."""
    winner: Winner | None = None
    probes: int = 0
    """Probes with a verdict, of all its starts."""
    seconds: float = 0.0
    """Wall time of its probes, rematches and proofs."""
    unstored: str = ""
    """Why the store of results did not take it; empty where it did, or there is none."""
    time: str


class Stored(Frozen):
    """The store of results has taken what it did not take when some cells ended."""

    type: Literal["stored"] = "stored"
    cells: tuple[str, ...]
    time: str


class NightCompared(Frozen):
    """The night was compared with the good nights before it, as the store knows them."""

    type: Literal["compared"] = "compared"
    changes: tuple[NightChange, ...]
    """What changed, regressions and all else, by cell."""
    uncompared: tuple[str, ...]
    """The cells of which nothing could be said."""
    time: str

    @property
    def regressions(self) -> tuple[NightChange, ...]:
        """The changes that are regressions."""
        return tuple(change for change in self.changes if change.regressed)


class NightInterrupted(Frozen):
    """The controller was told to end, or could not go on, and has ended what was under way."""

    type: Literal["interrupted"] = "interrupted"
    why: str
    """The signal's name, or what this machine refused."""
    time: str


class Closed(Frozen):
    """Every cell has come to its end."""

    type: Literal["closed"] = "closed"
    time: str


NightEntry = (
    NightAsked | NightOpened | CellStarted | CellEnded | Stored | NightCompared | NightInterrupted | Closed
)
NIGHT_ENTRY: TypeAdapter[NightEntry] = TypeAdapter(Annotated[NightEntry, Field(discriminator="type")])
