"""A winner that seems slower than the good nights before is proven again, before the night says that it is."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.errors import StoreError
from autotune.results.regression import REMEMBERED, single_speed, spreads, suspected
from autotune.results.reuse_key import asked_digest
from autotune.results.row import CellRow
from autotune.results.store import Store
from autotune.results.thresholds import Thresholds
from autotune.run.best import Best
from autotune.specs import RunSpec


class Suspicion:
    """What the nights of a cell say of tonight's winner (`run.doubt.Doubt`).

    It is told of a cell alone, while others still run, so that its proofs run where the others did: how nights differ
    is what its own say. A store that does not answer has no doubts.
    """

    def __init__(
        self, store: Store, spec: RunSpec, sweep: str, night: str, cell: str, thresholds: Thresholds
    ) -> None:
        self._store = store
        self._row = CellRow(sweep=sweep, night=night, cell=cell, state="proven", asked=asked_digest(spec))
        self._thresholds = thresholds
        self._past: tuple[CellRow, ...] | None = None

    def of(self, best: Best, speeds: Sequence[float]) -> bool:
        """Tell whether a winner is to be proven again."""
        past = self._history()
        if not past or not speeds:
            return False
        interval = best.tokens_per_second_interval
        tonight = self._row.model_copy(
            update={
                "winner": best.candidate, "proofs": tuple(speeds),
                "tokens_per_second": speeds[-1], "interval": interval,
            }
        )  # fmt: skip
        near = past[-self._thresholds.nights :]
        spread = spreads({self._row.cell: near}, {self._row.cell: [single_speed(row) for row in past]})
        return suspected(tonight, near, spread[self._row.cell], self._thresholds)

    def _history(self) -> tuple[CellRow, ...]:
        """Return the good nights of the cell, the oldest first."""
        if self._past is None:
            try:
                self._past = self._store.past(self._row, REMEMBERED, self._thresholds.since or "")
            except StoreError:
                self._past = ()
        return self._past
