"""What keeps the results of all nights: one protocol, whatever stands behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from pydantic import Field

from autotune.options import Options
from autotune.outcome import Outcome
from autotune.results.moment import Moment
from autotune.results.row import CellRow, CellState, RunRows, TrialKind
from autotune.validation import Frozen

SCHEMA = 1
"""Version of the tables. Raised with every change that an older autotune would misread."""


class Query(Options):
    """Which trials are asked for: all that meet every filter that is given. Several values of one filter are an or."""

    subject: ClassVar[str] = "Which trials"

    sweep: tuple[str, ...] = ()
    """Of this sweep."""
    night: tuple[str, ...] = ()
    """Of this night, as its folder is called."""
    cell: tuple[str, ...] = ()
    """Of this cell."""
    model: tuple[str, ...] = ()
    """Of this model, as the sweep file names it."""
    hardware: tuple[str, ...] = ()
    """On this device, as its vendor calls it."""
    kind: tuple[TrialKind, ...] = ()
    """Of this kind: probe, rematch or proof."""
    outcome: tuple[Literal["ok", "oom", "non_finite", "timeout", "crash", "lost", "unsupported"], ...] = ()
    """With this verdict: ok, oom, non_finite, timeout, crash, lost or unsupported."""
    since: Moment | None = None
    """Of nights since a day (2026-11-22) or a moment."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Rows, at most; then the newest nights come first."""


class Known(Frozen):
    """A trial of an earlier run that measured what is asked for now."""

    night: str
    run: str
    number: int
    time: str
    budget: int
    """Bytes that the device granted it."""
    outcome: Outcome


class Fit(NamedTuple):
    """What one cell's night says of one candidate's memory: the worst of its measurements, none of them reused."""

    night: str
    cell: str
    candidate: str
    """Digest of the candidate's key."""
    proof: bool
    """Whether proofs say it, which load memory more than probes."""
    oom: bool
    peak: int | None
    """Bytes, the largest; None where none trained."""


class Origin(NamedTuple):
    """What probes were measured for, and where: what equals in all of it may stand for them."""

    asked: str
    """`reuse_key.asked_digest`."""
    model: str
    """`reuse_key.model_digest`."""
    environment: str
    """Digest of the environment."""


class Verdict(Frozen):
    """What the comparison of one cell's night with the nights before it came to."""

    sweep: str
    night: str
    cell: str
    good: bool
    """Whether later nights may be compared with it: it was proven, and nothing regressed."""
    regressions: str = "[]"
    """What regressed, as JSON."""


class Store(Protocol):
    """Results of all nights. What `add` returned from is on disk; several processes may write at a time."""

    def add(self, rows: RunRows | Iterable[RunRows]) -> None:
        """Keep the rows of one or several cells, all of one call in one transaction.

        Adding the same again changes nothing. What a longer journal of the same cell says replaces what a shorter one
        said.
        """
        ...

    def sweeps(self) -> tuple[str, ...]:
        """Return the names of all sweeps, sorted."""
        ...

    def nights(self, sweep: str) -> tuple[str, ...]:
        """Return the nights of a sweep, the oldest first."""
        ...

    def cells(
        self, sweep: str, nights: Sequence[str] = (), states: Sequence[CellState] = ()
    ) -> tuple[CellRow, ...]:
        """Return the cells of some nights (of all, where none is named), by night and cell."""
        ...

    def good(self, sweep: str, night: str, last: int, since: str = "") -> tuple[CellRow, ...]:
        """Return, of each cell of a night, the last good nights before it that asked for the same, `last` at most.

        Sorted by cell and night. A good night has a proven winner, and no verdict that something regressed in it.
        """
        ...

    def past(self, tonight: CellRow, last: int, since: str = "") -> tuple[CellRow, ...]:
        """Return what `good` does for one cell that need not be there yet: the last good nights, the oldest first."""
        ...

    def speeds(self, sweep: str, night: str, last: int, since: str = "") -> dict[str, tuple[float, ...]]:
        """Return the tokens per second of the nights that `good` returns, by cell, the oldest first.

        Of several proofs in one night it is the first's, as each night has it.
        """
        ...

    def fits(self, sweep: str, nights: Sequence[str]) -> Iterator[Fit]:
        """Yield what some nights say of the memory of their candidates, by cell and night."""
        ...

    def titles(self, candidates: Iterable[str]) -> dict[str, str]:
        """Return what people call candidates, by the digests of their keys."""
        ...

    def judge(self, verdicts: Iterable[Verdict]) -> None:
        """Keep what comparisons came to, in the place of what was said of the same cells before."""
        ...

    def find_trial(self, key: str, since: str) -> Known | None:
        """Return the newest probe of a key (`reuse_key`) that was measured since a moment and says something for good.

        That is one that trained, or ran out of memory, and was not itself reused.
        """
        ...

    def reusable(self, since: str) -> dict[Origin, int]:
        """Return how many different probes since a moment `find_trial` would return, by what they were measured for."""
        ...

    def query(self, query: Query) -> Iterator[dict[str, Any]]:
        """Yield the trials that are asked for as flat rows, by night, cell and number, each axis a key of its own."""
        ...

    def count(self) -> int:
        """Return how many trials there are."""
        ...

    def close(self) -> None:
        """Let go of what it holds; safe to call twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...
