"""How far a night is: a function of its folder, whoever works on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from autotune.errors import AutotuneError
from autotune.results.row import CellState
from autotune.run.journal import read_record
from autotune.run.paths import JOURNAL
from autotune.run.sealed_lines import holder
from autotune.sweep.events import CellEnded, CellStarted
from autotune.sweep.journal import NightRecord, read_night
from autotune.sweep.night import NightPaths
from autotune.validation import Frozen


class UnderWay(Frozen):
    """A cell whose run has begun and not ended."""

    cell: str
    since: str
    """When its run began, or went on."""
    probes: int
    """That have a verdict."""
    doing: str
    """What was written down last."""


class NightProgress(Frozen):
    """How far a night is."""

    sweep: str
    night: str
    folder: str
    controller: str | None
    """The process that works on it, by what it wrote into the lock; None where nobody does."""
    closed: bool
    interrupted: str
    """Why the newest controller ended early, by its own word; empty where it did not, or was killed."""
    cells: int
    states: dict[CellState, int]
    """How many cells ended so."""
    under_way: tuple[UnderWay, ...]
    probes: int
    """With a verdict, of all cells."""
    seconds: float
    """Of the probes of cells that ended."""

    @property
    def ended(self) -> int:
        """Cells that have ended."""
        return sum(self.states.values())

    @property
    def pending(self) -> int:
        """Cells whose run has not begun."""
        return self.cells - self.ended - len(self.under_way)


def progress_of(paths: NightPaths) -> NightProgress:
    """Return how far a night is. Raises InputError where there is none, JournalError where its record is damaged."""
    record = read_night(paths)
    under_way = tuple(_under_way(paths, record.started[cell]) for cell in record.under_way)
    ended = record.ended.values()
    return NightProgress(
        sweep=paths.sweep, night=paths.id, folder=str(paths.root), controller=holder(paths.lock),
        closed=record.closed is not None,
        interrupted="" if record.interrupted is None else record.interrupted.why,
        cells=0 if record.asked is None else len(record.asked.cells),
        states=dict(Counter(entry.state for entry in ended)),
        under_way=under_way,
        probes=sum(entry.probes for entry in ended) + sum(one.probes for one in under_way),
        seconds=sum(entry.seconds for entry in ended),
    )  # fmt: skip


def _under_way(paths: NightPaths, started: CellStarted) -> UnderWay:
    try:
        record = read_record(paths.run(started.cell).journal)
    except AutotuneError:  # it has not written its first line
        return UnderWay(cell=started.cell, since=started.time, probes=0, doing="starting")
    newest = record.entries[-1] if record.entries else None
    doing = "starting" if newest is None else newest.type.replace("_", " ")
    return UnderWay(cell=started.cell, since=started.time, probes=len(record.history), doing=doing)


class CellResult(Frozen):
    """What came of a cell in a night, beside the night before."""

    cell: str
    ended: CellEnded | None
    """None where it has not ended."""
    change: float | None = None
    """Share by which the winner's tokens per second differ from those of the last night that had a winner."""


def results_of_cells(record: NightRecord, before: Mapping[str, float]) -> tuple[CellResult, ...]:
    """Return what came of each cell, in the order of the plan; `before` has the tokens/s of earlier winners."""
    assert record.asked is not None
    found = []
    for cell in record.asked.cells:
        ended, earlier = record.ended.get(cell), before.get(cell)
        change = None
        if ended is not None and ended.winner is not None and earlier:
            change = ended.winner.tokens_per_second / earlier - 1
        found.append(CellResult(cell=cell, ended=ended, change=change))
    return tuple(found)


def speeds_before(paths: NightPaths) -> dict[str, float]:
    """Return the tokens/s of each cell's winner in the last night before this one that had one."""
    found: dict[str, float] = {}
    earlier = [journal.parent for journal in sorted(paths.root.parent.glob(f"*/{JOURNAL}"))]
    for root in earlier:
        if root.name >= paths.id:
            break
        try:
            record = read_night(NightPaths(root))
        except AutotuneError:  # one that cannot be read is no reason to show nothing of this one
            continue
        found |= {
            cell: entry.winner.tokens_per_second
            for cell, entry in record.ended.items()
            if entry.winner is not None
        }
    return found
