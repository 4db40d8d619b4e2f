"""What the lines of a run's journal add up to: its trials, its proofs, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import eq
from typing import Literal, overload

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
    RematchStarted,
    Reopened,
    Retried,
    RungTraced,
    Searched,
    Skipped,
    Started,
    Surveyed,
)  # fmt: skip
from autotune.search.path import Step
from autotune.site import Site
from autotune.techniques.families import title as title_of
from autotune.trial import TRIES, History, ProofFinished, RematchFinished, Trial
from autotune.validation import Frozen

Counted = Literal["probe", "rematch", "proof"]
"""Work that is tried several times where something outside ends it."""


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
    """What the lines about one probe add up to, or about the rematches or proofs of one trial."""

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


class Tally:
    """What lines add up to, about probes and proofs. They are taken in one by one, each in the same time."""

    def __init__(self) -> None:
        self.probes: dict[int, tuple[Started, Finished | None]] = {}
        """Each probe's newest start and its verdict, by number."""
        self.trials: dict[int, Trial] = {}
        """The trials of those with a verdict, by number."""
        self.pending: dict[int, Started] = {}
        """Those without a verdict."""
        self.proofs: list[ProofFinished] = []
        """The proofs with a verdict, in order."""
        self.rematches: list[RematchFinished] = []
        """The rematches with a verdict, in order."""
        self.decided: Decided | None = None
        """The end of the run, once reached, unless what was lost is tried again since."""
        self._tried: dict[tuple[str, int], _Tried] = {}

    def take(self, entry: Entry) -> None:
        """Take a line in, which is one that a tuner writes at its place."""
        match entry:  # what is most frequent first: asking for a type that it is not takes longest
            case Started(number=number):
                self._of("probe", number).start()
                self.probes[number] = entry, None
                self.trials.pop(number, None)
                self.pending[number] = entry
            case Finished(number=number, outcome=outcome):
                if self._tried["probe", number].settles(outcome):
                    started, _ = self.probes[number]
                    self.probes[number] = started, entry
                    self.trials[number] = Trial(
                        number=number, candidate=started.candidate, node=started.node, why=started.why,
                        outcome=outcome, seconds=entry.seconds, prediction=started.prediction,
                    )  # fmt: skip
                    self.pending.pop(number, None)
            case ProofStarted(number=number):
                self._of("proof", number).start()
            case RematchStarted(number=number):
                self._of("rematch", number).start()
            case Interrupted(work="probe" | "rematch" | "proof", number=int(number)):
                self._tried[entry.work, number].interrupt()
            case ProofFinished(number=number, outcome=outcome):
                if self._tried["proof", number].settles(outcome):
                    self.proofs.append(entry)
            case RematchFinished(number=number, outcome=outcome):
                if self._tried["rematch", number].settles(outcome):
                    self.rematches.append(entry)
            case Retried(probes=probes, proofs=proofs):
                self.pending |= {number: self.probes[number][0] for number in probes}
                self.probes |= {number: (self.probes[number][0], None) for number in probes}
                for number in probes:
                    self.trials.pop(number, None)
                self.proofs = [
                    p for p in self.proofs if not (p.number in proofs and isinstance(p.outcome, Lost))
                ]
                self.decided = None
            case Reopened():
                self.decided = None
            case Decided():
                self.decided = entry

    def tried(self, work: Counted, number: int) -> _Tried:
        """Return how often a probe, a rematch or a proof without a verdict was tried."""
        return self._tried.get((work, number), _Tried())

    def in_order(self) -> tuple[Started, ...]:
        """Return the probes without a verdict, in the order of their numbers."""
        return tuple(started for _, started in sorted(self.pending.items()))

    def _of(self, work: str, number: int) -> _Tried:
        return self._tried.setdefault((work, number), _Tried())


class Lines(Sequence[Entry]):
    """The first so many of a journal's lines. Immutable: lines that follow are in the same list, and not in these."""

    __slots__ = ("_count", "_shared")

    def __init__(self, lines: Iterable[Entry] = ()) -> None:
        self._shared = list(lines)
        self._count = len(self._shared)

    def and_then(self, line: Entry) -> Lines:
        """Return these lines and one more, without a copy unless another followed these before."""
        if len(self._shared) > self._count:
            return Lines((*self, line))
        longer = Lines.__new__(Lines)
        longer._shared, longer._count = self._shared, self._count + 1
        self._shared.append(line)
        return longer

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Entry, ...]: ...
    def __getitem__(self, index: int | slice) -> Entry | tuple[Entry, ...]:
        if isinstance(index, slice):
            return tuple(self._shared[place] for place in range(*index.indices(self._count)))
        return self._shared[range(self._count)[index]]

    def __iter__(self) -> Iterator[Entry]:
        return islice(self._shared, self._count)

    def __reversed__(self) -> Iterator[Entry]:
        return islice(reversed(self._shared), len(self._shared) - self._count, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lines) and len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclass(frozen=True)
class Record:
    """What the lines of a journal add up to."""

    entries: Lines

    @classmethod
    def of(cls, entries: Iterable[Entry], tally: Tally | None = None) -> Record:
        """Fold lines into a record; `tally` is what they add up to, where that is known."""
        record = cls(Lines(entries))
        if tally is not None:
            record.__dict__["_tally"] = tally
        return record

    def with_line(self, line: Entry) -> Record:
        """Return this record with one more line, in the time of that line, however many there are.

        What the lines add up to goes over to the longer record: asked again, this one adds its own up anew.
        """
        record = Record(self.entries.and_then(line))
        if (tally := self.__dict__.pop("_tally", None)) is not None:
            tally.take(line)
            record.__dict__["_tally"] = tally
        return record

    @property
    def asked(self) -> Asked | None:
        """What the run was asked for; None before its first start."""
        return next((entry for entry in self.entries if isinstance(entry, Asked)), None)

    @property
    def inspection(self) -> Inspected | None:
        """The model's facts, once known."""
        return next((entry for entry in self.entries if isinstance(entry, Inspected)), None)

    @cached_property
    def history(self) -> History:
        """All trials that have their verdict, in the order of their numbers."""
        return tuple(self._trials.values())

    @property
    def verdicts(self) -> History:
        """The same trials in the order in which they ended."""
        return tuple(self._tally.trials.values())

    def trial(self, number: int) -> Trial | None:
        """Return a trial by its number; None while it has no verdict."""
        return self._trials.get(number)

    def finished(self, number: int) -> Finished | None:
        """Return the line with a probe's verdict; None while it has none."""
        return self._tally.probes.get(number, (None, None))[1]

    def site(self, number: int) -> Site | None:
        """Return where a trial was measured last: by its probe, or a rematch or a proof, whose speed replaces it.

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
                case RematchFinished(number=of, outcome=Ok(), site=elsewhere) if of == number:
                    found = elsewhere or opened
                case ProofFinished(number=of, outcome=Ok(), site=elsewhere) if of == number:
                    found = elsewhere or opened
        return found

    @property
    def pending(self) -> tuple[Started, ...]:
        """The probes that were started and have no verdict, in the order of their numbers."""
        return self._tally.in_order()

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
    def opened_at(self) -> Site | None:
        """Where the newest start of a tuner was told that probes run; None before the first."""
        return next((entry.site for entry in reversed(self.entries) if isinstance(entry, Opened)), None)

    @property
    def surveyed(self) -> Surveyed | None:
        """What was predicted around the winner; the newest, None before the first."""
        return next((entry for entry in reversed(self.entries) if isinstance(entry, Surveyed)), None)

    @property
    def proofs(self) -> tuple[ProofFinished, ...]:
        """All proofs that have their verdict, in order; a lost one is none that failed."""
        return tuple(self._tally.proofs)

    @property
    def rematches(self) -> tuple[RematchFinished, ...]:
        """All rematches of the finals that have their verdict, in order."""
        return tuple(self._tally.rematches)

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
    def written(self) -> tuple[str, ...]:
        """Files that a command of the user's own wrote outside of its scratch folders, by name."""
        lines = (
            entry.written for entry in self.entries if isinstance(entry, Inspected | Finished | ProofFinished)
        )
        return tuple(sorted(set().union(*lines)))

    @property
    def searched(self) -> Searched | None:
        """How the newest search ended; None while none has."""
        return next((entry for entry in reversed(self.entries) if isinstance(entry, Searched)), None)

    @property
    def decided(self) -> Decided | None:
        """The end of the run, once reached, unless what was lost is tried again since."""
        return self._tally.decided

    def tries(self, work: Counted, number: int) -> int:
        """Return how often a probe, a rematch or a proof without a verdict was tried; interruptions do not count."""
        return self._tally.tried(work, number).tries

    def is_under_way(self, work: Counted, number: int) -> bool:
        """Tell whether a probe, a rematch or a proof was started, and neither finished nor interrupted."""
        return self._tally.tried(work, number).under_way

    @cached_property
    def _tally(self) -> Tally:
        tally = Tally()
        for entry in self.entries:
            tally.take(entry)
        return tally

    @cached_property
    def _trials(self) -> dict[int, Trial]:
        return dict(sorted(self._tally.trials.items()))

    @property
    def next_number(self) -> int:
        """The number of the next trial, from 1."""
        return 1 + max(self._tally.probes, default=0)
