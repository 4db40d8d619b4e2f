"""What the lines of a run's journal add up to: its trials, its proofs, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from autotune.candidate import Candidate
from autotune.outcome import Lost, Ok, Outcome
from autotune.run.events import (
    Asked,
    Decided,
    Entry,
    Finished,
    Inspected,
    Interrupted,
    Opened,
    ProofStarted,
    Retried,
    RungTraced,
    Searched,
    Skipped,
    Started,
)  # fmt: skip
from autotune.search.path import Step
from autotune.site import Site
from autotune.techniques.families import title as title_of
from autotune.trial import TRIES, History, ProofFinished, Trial
from autotune.validation import Frozen


class Unknown(Frozen):
    """A hole in the search: something outside prevented that a candidate was measured, or proven."""

    number: int
    """Of its trial."""
    candidate: Candidate
    lost: Literal["probe", "proof"]

    @property
    def title(self) -> str:
        """Say which it is: `probe 5 (bf16, micro-batch 8)`, or its proof."""
        of = "the proof of " if self.lost == "proof" else ""
        return (
            f"{of}probe {self.number} ({title_of(self.candidate)}, micro-batch {self.candidate.micro_batch})"
        )


@dataclass
class _Tried:
    """What the lines about one probe add up to, or about the proofs of one trial."""

    tries: int = 0
    """Starts since the last verdict that counts, without those that the tuner saw interrupted."""
    under_way: bool = False
    """Whether a start is the last word."""

    def start(self) -> None:
        self.tries += 1
        self.under_way = True

    def interrupt(self) -> None:
        self.tries -= 1
        self.under_way = False

    def settles(self, outcome: Outcome) -> bool:
        """Take a try's verdict, and tell whether it is the last word."""
        self.under_way = False
        if isinstance(outcome, Lost) and self.tries < TRIES:
            return False
        self.tries = 0
        return True


@dataclass(frozen=True)
class Record:
    """What the lines of a journal add up to."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Record:
        """Fold lines into a record."""
        return cls(tuple(entries))

    @property
    def asked(self) -> Asked | None:
        """What the run was asked for; None before its first start."""
        return next((entry for entry in self.entries if isinstance(entry, Asked)), None)

    @property
    def inspection(self) -> Inspected | None:
        """The model's facts, once known."""
        return next((entry for entry in self.entries if isinstance(entry, Inspected)), None)

    @property
    def history(self) -> History:
        """All trials that have their verdict, in the order of their numbers."""
        return tuple(
            Trial(
                number=number, candidate=started.candidate, node=started.node, why=started.why,
                outcome=finished.outcome, seconds=finished.seconds, prediction=started.prediction,
            )
            for number, (started, finished) in sorted(self._probes[0].items())
            if finished is not None
        )  # fmt: skip

    def trial(self, number: int) -> Trial | None:
        """Return a trial by its number; None while it has no verdict."""
        return next((trial for trial in self.history if trial.number == number), None)

    def finished(self, number: int) -> Finished | None:
        """Return the line with a probe's verdict; None while it has none."""
        return self._probes[0].get(number, (None, None))[1]

    def site(self, number: int) -> Site | None:
        """Return where a trial was measured: by its proof, whose speed replaces the probe's, else by its probe.

        None while it has no verdict.
        """
        found: Site | None = None
        opened: Site | None = None
        for entry in self.entries:
            match entry:
                case Opened(site=here):
                    opened = here
                case Finished(number=of, site=elsewhere) if of == number:
                    found = elsewhere or opened
                case ProofFinished(number=of, outcome=Ok(), site=elsewhere) if of == number:
                    found = elsewhere or opened
        return found

    @property
    def pending(self) -> tuple[Started, ...]:
        """The probes that were started and have no verdict, in the order of their numbers."""
        return tuple(
            started for _, (started, finished) in sorted(self._probes[0].items()) if finished is None
        )

    @property
    def path(self) -> tuple[Step, ...]:
        """How far the graph was walked: to the end of the search, or to the newest probe."""
        walks = [entry.path for entry in self.entries if isinstance(entry, Started | Searched)]
        return walks[-1] if walks else ()

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What was passed over by prediction and not measured since; the newest prediction of each."""
        tried = {entry.candidate for entry in self.entries if isinstance(entry, Started)}
        newest = {entry.candidate: entry for entry in self.entries if isinstance(entry, Skipped)}
        return tuple(entry for candidate, entry in newest.items() if candidate not in tried)

    @property
    def traced(self) -> tuple[RungTraced, ...]:
        """What the memory model was taught, in order."""
        return tuple(entry for entry in self.entries if isinstance(entry, RungTraced))

    @property
    def proofs(self) -> tuple[ProofFinished, ...]:
        """All proofs that have their verdict, in order; a lost one is none that failed."""
        return self._proofs[0]

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """The holes in the search, in the order of their numbers."""
        trials = {trial.number: trial for trial in self.history}
        unproven = {proof.number for proof in self.proofs if isinstance(proof.outcome, Lost)}
        return tuple(
            Unknown(number=number, candidate=trial.candidate, lost="proof" if number in unproven else "probe")
            for number, trial in trials.items()
            if number in unproven or isinstance(trial.outcome, Lost)
        )

    @property
    def searched(self) -> Searched | None:
        """How the newest search ended; None while none has."""
        return next((entry for entry in reversed(self.entries) if isinstance(entry, Searched)), None)

    @property
    def decided(self) -> Decided | None:
        """The end of the run, once reached, unless what was lost is tried again since."""
        for entry in reversed(self.entries):
            if isinstance(entry, Decided):
                return entry
            if isinstance(entry, Retried):
                return None
        return None

    def tries(self, work: Literal["probe", "proof"], number: int) -> int:
        """Return how often a probe or a proof without a verdict was tried; interruptions do not count."""
        return self._tried(work, number).tries

    def is_under_way(self, work: Literal["probe", "proof"], number: int) -> bool:
        """Tell whether a probe or a proof was started, and neither finished nor interrupted."""
        return self._tried(work, number).under_way

    def _tried(self, work: Literal["probe", "proof"], number: int) -> _Tried:
        return (self._probes if work == "probe" else self._proofs)[1].get(number, _Tried())

    @cached_property
    def _probes(self) -> tuple[dict[int, tuple[Started, Finished | None]], dict[int, _Tried]]:
        """Each probe's newest start and its verdict, and how often it was tried, by number."""
        found: dict[int, tuple[Started, Finished | None]] = {}
        tried: dict[int, _Tried] = {}
        for entry in self.entries:
            match entry:
                case Started(number=number):
                    tried.setdefault(number, _Tried()).start()
                    found[number] = entry, None
                case Interrupted(work="probe", number=int(number)):
                    tried[number].interrupt()
                case Finished(number=number, outcome=outcome):
                    if tried[number].settles(outcome):
                        found[number] = found[number][0], entry
                case Retried(probes=numbers):
                    found |= {number: (found[number][0], None) for number in numbers}
        return found, tried

    @cached_property
    def _proofs(self) -> tuple[tuple[ProofFinished, ...], dict[int, _Tried]]:
        """The proofs with a verdict in order, and how often those without one were tried, by the trial's number."""
        found: list[ProofFinished] = []
        tried: dict[int, _Tried] = {}
        for entry in self.entries:
            match entry:
                case ProofStarted(number=number):
                    tried.setdefault(number, _Tried()).start()
                case Interrupted(work="proof", number=int(number)):
                    tried[number].interrupt()
                case ProofFinished(number=number, outcome=outcome):
                    if tried[number].settles(outcome):
                        found.append(entry)
                case Retried(proofs=numbers):
                    found = [p for p in found if not (p.number in numbers and isinstance(p.outcome, Lost))]
        return tuple(found), tried

    @property
    def next_number(self) -> int:
        """The number of the next trial, from 1."""
        return 1 + max((entry.number for entry in self.entries if isinstance(entry, Started)), default=0)

    @property
    def seconds(self) -> float:
        """Seconds that the probes took whose verdicts stand."""
        return sum(trial.seconds for trial in self.history)
