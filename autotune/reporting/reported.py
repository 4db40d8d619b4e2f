"""A run as its folder holds it, with what follows from that: what every kind of report reads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from autotune.commands import command
from autotune.errors import InputError, JournalError
from autotune.reporting.tradeoffs import Tradeoffs
from autotune.run.best import Best, NewerBest
from autotune.run.events import Opened
from autotune.run.folder import load_spec
from autotune.run.journal import read_record
from autotune.run.paths import RunPaths
from autotune.run.proof import in_running
from autotune.run.record import Record
from autotune.search.context import SearchContext
from autotune.search.finals import pairs_of
from autotune.search.selection import Pairs
from autotune.specs import RunSpec
from autotune.trial import History, Trial


@dataclass(frozen=True)
class Reported:
    """A finished or unfinished run."""

    paths: RunPaths
    spec: RunSpec
    record: Record
    context: SearchContext | None
    """What bounds the search; None before the model is known."""
    best: Best | None
    """What `best.yaml` says; None without a winner."""

    @classmethod
    def read(cls, paths: RunPaths) -> Reported:
        """Read a run. Raises InputError where a file of it cannot be used, JournalError where one is damaged."""
        return cls.of(paths, load_spec(paths), read_record(paths.journal))

    @classmethod
    def of(cls, paths: RunPaths, spec: RunSpec, record: Record) -> Reported:
        """Return a run that was read already. Raises as `read`."""
        context = None
        if record.inspection is not None:
            context = SearchContext.of(
                spec, record.inspection.facts, record.inspection.budget, record.opened_at
            )
        decided = record.decided is not None and record.decided.winner is not None
        return cls(paths, spec, record, context, _winner(paths) if decided else None)

    @property
    def began(self) -> datetime | None:
        """When a tuner first worked on it, in UTC; None before that."""
        opened = next((entry for entry in self.record.entries if isinstance(entry, Opened)), None)
        return None if opened is None else datetime.fromisoformat(opened.time)

    @cached_property
    def trials(self) -> History:
        """The trials that are in the running, as finals and proofs leave them."""
        return in_running(self.record.history, self.record.rematches, self.record.proofs)

    @cached_property
    def pairs(self) -> Pairs:
        """How finalists compared in alternation."""
        if self.context is None:
            return {}
        return pairs_of(self.record.history, self.record.rematches, self.context)

    @cached_property
    def winner(self) -> Trial | None:
        """The winner's trial; None without one. Raises InputError where `best.yaml` is of no trial of this run."""
        if self.best is None:
            return None
        for trial in self.trials:
            if trial.candidate == self.best.candidate:
                return trial
        raise InputError(
            f"{self.paths.best} says another configuration than those that this run measured, so it was changed or is "
            "of another run; restore it, or tune again",
            about="candidate",
        )

    @cached_property
    def tradeoffs(self) -> Tradeoffs | None:
        """What is known beside the winner; None before the model is known."""
        if self.context is None:
            return None
        return Tradeoffs.of(self.record, self.context, self.best, self.spec.device.evidence)


def _winner(paths: RunPaths) -> Best:
    try:
        return Best.read(paths.best)
    except NewerBest:
        raise
    except InputError as error:
        again = command("resume", paths.root)
        raise JournalError(
            f"{error}. The run's record is whole: `{again}` writes it again", "damaged"
        ) from error
