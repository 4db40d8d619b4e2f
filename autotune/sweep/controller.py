"""The controller of a night: runs its cells, as many at a time as may be, and writes down how each ended.

Each run is a thread of this process, because `tune` waits for one request after the other. The main thread alone
writes the night's journal and the store. What a run recorded is in its own journal, so the night's says no more than
which runs there were and how they ended: a controller that is killed at any moment goes on from both.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from autotune.errors import (
    AutotuneError,
    InputError,
    JournalError,
    ModelError,
    NothingFits,
    NothingProven,
    NothingTrained,
    StoreError,
)
from autotune.interruption import Interruption, interruption, shielded
from autotune.probe.folder import write_atomically
from autotune.probe.launch import end_all
from autotune.results.comparison import compare_night
from autotune.results.record import record_run
from autotune.results.reuse import StoredTrials
from autotune.results.row import CellRow, CellState, RunRows
from autotune.results.store import Store
from autotune.results.suspicion import Suspicion
from autotune.results.telling import tell
from autotune.run.best import Best
from autotune.run.folder import run_at
from autotune.run.journal import now, reason
from autotune.run.loop import tune
from autotune.specs import RunSpec
from autotune.sweep.asked import AskedSweep
from autotune.sweep.events import (
    CellEnded,
    CellStarted,
    Closed,
    NightCompared,
    NightInterrupted,
    Stored,
    Winner,
)
from autotune.sweep.execution import Execution
from autotune.sweep.journal import NightJournal, NightRecord
from autotune.sweep.matrix import Cell
from autotune.sweep.night import NightPaths
from autotune.sweep.places import Place, Places
from autotune.sweep.stopping import EndedTracer, PlacedExecutor, StopRequest
from autotune.techniques.families import title as title_of

PATIENCE = 0.5
"""Seconds between two looks whether runs that were told to end have; each look ends what was launched meanwhile."""
JUNIT, SUMMARY = "junit.xml", "summary.md"
"""Files in a night's folder that say what changed, for a CI."""
ERROR = "error.txt"
"""File in a run's folder with the traceback of what no run should raise."""

_STATES: tuple[tuple[type[Exception], CellState], ...] = (
    (NothingFits, "nothing_fits"),
    (NothingTrained, "nothing_trained"),
    (NothingProven, "nothing_proven"),
    (ModelError, "model_error"),
    (InputError, "bad_input"),
    (Exception, "failed"),
)
"""What an error of a run says of its cell; the first that it is."""


class NightCallbacks:
    """Told of every event of a night, in the main thread; does nothing of itself. What overrides must not raise."""

    def opened(self, paths: NightPaths, record: NightRecord) -> None:
        """Say that the controller begins, or goes on where an earlier one ended."""

    def started(self, cell: Cell) -> None:
        """Say that the run of a cell begins."""

    def ended(self, entry: CellEnded, record: NightRecord) -> None:
        """Say how it ended."""

    def untold(self, why: str) -> None:
        """Say that a file or a URL was not told what changed, and why."""


@dataclass(frozen=True)
class _Done:
    """What a thread says at its end: the rows of its run, or what ended it before the run was done."""

    cell: Cell
    rows: RunRows | None = None
    broken: BaseException | None = None


class Controller:
    """Runs what a night's journal says is still to be run."""

    def __init__(
        self,
        asked: AskedSweep,
        paths: NightPaths,
        journal: NightJournal,
        execution: Execution,
        store: Store | None = None,
        callbacks: NightCallbacks | None = None,
    ) -> None:
        """`journal` is open, and says what `asked` says. Without a `store` results are in the night alone."""
        self._asked = asked
        self._paths = paths
        self._journal = journal
        self._execution = execution
        self._store = store
        self._callbacks = callbacks or NightCallbacks()
        self._places = {
            name: Places(hardware.devices, hardware.shared) for name, hardware in asked.file.hardware.items()
        }
        self._waiting: dict[tuple[str, int], deque[tuple[int, Cell]]] = {}
        """The cells that have not started, with their turns, by hardware and ranks: those alike wait in a line."""
        self._active: dict[str, tuple[threading.Thread, Place]] = {}
        self._done: SimpleQueue[_Done] = SimpleQueue()
        self._ended = StopRequest()

    def go(self) -> NightRecord:
        """Run every pending cell; return what the night came to.

        A run that fails is the state of its cell, and ends none of the others. Raises JournalError where the night's
        journal cannot be written, StoreError where the store did not take all (`go` again stores it), and whatever
        asked for the end (Interruption, KeyboardInterrupt) once nothing is left running.
        """
        record = self._journal.record
        if record.asked is None:
            self._journal.append(self._asked.line)
        known = self._store is None or record.compared is not None
        if record.closed is not None and known and not record.pending and not record.unstored:
            return record
        self._journal.open_night()
        self._callbacks.opened(self._paths, record)
        try:
            self._store_again()
            for turn, name in enumerate(record.pending):
                cell = self._asked.by_id[name]
                self._waiting.setdefault((cell.hardware, self._gpus(cell)), deque()).append((turn, cell))
            while True:
                self._start_what_can()
                if not self._active:
                    break
                self._settle(self._done.get())
            uncompared = self._compare()
        except BaseException as error:
            self._end(error)
            raise
        self._journal.append(Closed(time=now()))
        if unstored := record.unstored:
            raise StoreError(
                f"{record.ended[unstored[0]].unstored}. The results of {len(unstored)} cells are in {self._paths.root} "
                "alone"
            )
        if uncompared:
            raise StoreError(uncompared)
        return record

    def _compare(self) -> str:
        """Write down what changed since the nights before; return why that could not be told, or nothing."""
        if self._store is None:
            return ""
        try:
            found = compare_night(self._store, self._paths.sweep, self._paths.id, self._asked.file.regression)
        except StoreError as error:
            return str(error)
        except InputError as error:  # nothing of this night is in the store, which is told
            return "" if self._journal.record.unstored else str(error)
        uncompared = tuple(one.cell for one in found.uncompared)
        self._journal.append(NightCompared(changes=found.changes, uncompared=uncompared, time=now()))
        folder = self._paths.root
        for why in tell(
            found, junit=folder / JUNIT, summary=folder / SUMMARY, webhook=self._asked.file.webhook
        ):
            self._callbacks.untold(why)
        return ""

    def _start_what_can(self) -> None:
        """Start runs, by their turns, while there are devices and room for them; what no other uses goes first."""
        while len(self._active) < self._asked.file.cells_at_once:
            loads = [
                (load, line[0][0], key)
                for key, line in self._waiting.items()
                if line and (load := self._places[key[0]].load(key[1])) is not None
            ]
            if not loads:
                return
            *_, key = min(loads)
            _, cell = self._waiting[key].popleft()
            self._journal.append(CellStarted(cell=cell.id, time=now()))
            self._callbacks.started(cell)
            place = self._places[cell.hardware].bind(self._gpus(cell))
            thread = threading.Thread(target=self._work, args=(cell, place), name=cell.id, daemon=True)
            with shielded():
                self._active[cell.id] = thread, place
                thread.start()

    def _gpus(self, cell: Cell) -> int:
        return self._asked.file.goals[cell.goal].gpus

    def _settle(self, done: _Done) -> None:
        """Write down how a run ended."""
        thread, place = self._active.pop(done.cell.id)
        thread.join()
        self._places[done.cell.hardware].release(place)
        if done.rows is None:
            assert done.broken is not None
            raise done.broken
        entry = _ended(done.rows, self._keep(done.rows))
        self._journal.append(entry)
        self._callbacks.ended(entry, self._journal.record)

    def _keep(self, rows: RunRows) -> str:
        """Put a cell's rows into the store; return why that was not possible, or nothing."""
        if self._store is None:
            return ""
        try:
            self._store.add(rows)
        except StoreError as error:
            return str(error)
        return ""

    def _store_again(self) -> None:
        """Put into the store what it did not take when its cells ended."""
        record = self._journal.record
        stored = [cell for cell in record.unstored if not self._keep(self._rows(cell, record.ended[cell]))]
        if stored:
            self._journal.append(Stored(cells=tuple(stored), time=now()))

    def _rows(self, cell: str, ended: CellEnded) -> RunRows:
        paths = self._paths.run(cell)
        if not paths.spec.exists():
            return self._without_run(cell, ended.state, ended.why)
        return record_run(paths, self._paths.sweep, self._paths.id, cell, ended.state, ended.why)

    def _without_run(self, cell: str, state: CellState, why: str) -> RunRows:
        row = CellRow(
            sweep=self._paths.sweep, night=self._paths.id, cell=cell, state=state, reason=why, time=now(),
            model=self._asked.by_id[cell].model,
        )  # fmt: skip
        return RunRows(cell=row)

    def _work(self, cell: Cell, place: Place) -> None:
        """Take the run of a cell to its end: what its thread does."""
        try:
            proven = None
            try:
                proven = self._tune(cell, place)
                state, why = None, ""
            except Exception as error:  # noqa: BLE001  whatever it is, it is this cell's alone
                state = next(state for kind, state in _STATES if isinstance(error, kind))
                why = str(error) if isinstance(error, AutotuneError | OSError) else repr(error)
                if not isinstance(error, AutotuneError | OSError):
                    with suppress(OSError):
                        write_atomically(self._paths.run(cell.id).root / ERROR, traceback.format_exc())
            ended = CellEnded(cell=cell.id, state=state or "proven", why=why, time=now())
            try:
                rows = self._rows(cell.id, ended) if proven is None else self._proven(cell.id, *proven)
            except AutotuneError as error:
                rows = self._without_run(cell.id, "failed", why or str(error))
            self._done.put(_Done(cell, rows))
        except BaseException as error:  # noqa: BLE001  the end of the night, which the main thread knows of
            self._done.put(_Done(cell, broken=error))

    def _proven(self, cell: str, spec: RunSpec, best: Best) -> RunRows:
        paths = self._paths
        return record_run(paths.run(cell), paths.sweep, paths.id, cell, spec=spec, best=best)

    def _tune(self, cell: Cell, place: Place) -> tuple[RunSpec, Best]:
        self._ended.check()
        paths, spec = run_at(self._paths.run(cell.id).root, self._asked.specs.of(cell))
        with self._execution.hands(spec, place.device, paths.root) as (executor, tracer):
            best = tune(
                spec,
                paths,
                PlacedExecutor(executor, place, self._ended),
                tracer=EndedTracer(tracer, self._ended),
                recorded=self._recorded(spec),
                doubt=self._doubt(spec, cell.id),
            )
        return spec, best

    def _recorded(self, spec: RunSpec) -> StoredTrials | None:
        """Return what earlier nights measured that may stand for a probe of a run."""
        age = self._asked.file.reuse_within
        return None if self._store is None or age is None else StoredTrials(self._store, spec, age)

    def _doubt(self, spec: RunSpec, cell: str) -> Suspicion | None:
        """Return what earlier nights say of a run's winner."""
        if self._store is None:
            return None
        paths, thresholds = self._paths, self._asked.file.regression
        return Suspicion(self._store, spec, paths.sweep, paths.id, cell, thresholds)

    def _end(self, error: BaseException) -> None:
        """End all runs, wait for them, and write down why; those that came to their end meanwhile have ended so."""
        asked = interruption(error)
        self._ended.end(asked.number if isinstance(asked, Interruption) else signal.SIGINT)
        while self._active:
            end_all()  # again and again, for what was about to be launched
            with suppress(BaseException):  # nobody done yet, or what ends the night, which is told already
                self._settle(self._done.get(timeout=PATIENCE))
        with suppress(JournalError):  # where nothing can be written any more, the error itself says so
            self._journal.append(NightInterrupted(why=reason(error), time=now()))


def _ended(rows: RunRows, unstored: str) -> CellEnded:
    cell = rows.cell
    winner = None
    if cell.winner is not None:
        assert cell.tokens_per_second is not None
        assert cell.peak is not None
        assert cell.environment is not None
        winner = Winner(
            key=cell.winner.key(), title=title_of(cell.winner), micro_batch=cell.winner.micro_batch,
            tokens_per_second=cell.tokens_per_second, interval=cell.interval, peak=cell.peak,
            evidence=cell.environment.evidence,
        )  # fmt: skip
    return CellEnded(
        cell=cell.cell, state=cell.state, why=cell.reason, winner=winner, probes=cell.trials, seconds=cell.seconds,
        unstored=unstored, time=now(),
    )  # fmt: skip
