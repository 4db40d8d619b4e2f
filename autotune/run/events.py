"""The record of a run: the lines of its journal, and what they add up to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from autotune.candidate import Candidate
from autotune.outcome import Lost, Outcome
from autotune.prediction import Prediction
from autotune.search.path import SearchEnd, Step
from autotune.site import Site
from autotune.specs import ModelFacts, RunSpec
from autotune.techniques.families import title as title_of
from autotune.trial import TRIES, History, ProofFinished, Trial
from autotune.validation import Frozen

Work = Literal["inspection", "trace", "probe", "proof"]
"""What a tuner has a worker do."""


class Asked(Frozen):
    """What the run was asked for when it began: its spec.yaml, which must not change under it."""

    type: Literal["asked"] = "asked"
    spec: dict[str, Any]
    digest: str
    """SHA-256 of the spec as JSON with sorted keys."""

    @classmethod
    def of(cls, spec: RunSpec) -> Asked:
        """Return the line for a spec."""
        plain = json.loads(spec.model_dump_json())
        text = json.dumps(plain, sort_keys=True)
        return cls(spec=plain, digest=hashlib.sha256(text.encode()).hexdigest())


class Opened(Frozen):
    """A tuner began (or went on) to work on the run."""

    type: Literal["opened"] = "opened"
    version: str
    """Of autotune."""
    site: Site
    """Where the executor said that probes run: device, versions, machine."""
    time: str


class Inspected(Frozen):
    """A worker built the model without memory and said what it is."""

    type: Literal["inspected"] = "inspected"
    facts: ModelFacts
    baseline: int
    """Bytes that interpreter and libraries take on the device before any model."""
    budget: int
    """Bytes that the device grants; a resumed run is judged by the same budget."""


class RungTraced(Frozen):
    """The memory model learnt a rung, or that it cannot."""

    type: Literal["traced"] = "traced"
    candidate: Candidate
    """Any of the rung; of its own micro-batch where the trace holds for that one alone."""
    reason: str = ""
    """Why there is no trace; empty where there is one."""
    seconds: float
    """Wall time of the worker; 0 where the trace was known already."""


class Skipped(Frozen):
    """A candidate was passed over because it is predicted not to fit. Not a verdict: a later walk may try it."""

    type: Literal["skipped"] = "skipped"
    candidate: Candidate
    node: str
    prediction: Prediction
    time: str


class Started(Frozen):
    """A probe is about to be launched.

    Without a `finished` or an `interrupted` line after it, the tuner was lost on the way.
    """

    type: Literal["started"] = "started"
    number: int
    candidate: Candidate
    node: str
    why: str
    time: str
    prediction: Prediction | None = None
    """What the memory model expects of it; None where it was not traced."""
    path: tuple[Step, ...] = ()
    """How the graph was walked to this candidate; empty for a strategy that walks none."""


class Finished(Frozen):
    """A probe has its verdict, and nothing of it is left running.

    A verdict of `lost` is the last word only of as many tries as there may be: before, the probe is started again.
    """

    type: Literal["finished"] = "finished"
    number: int
    outcome: Outcome
    seconds: float
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables that the executor set for the probe; empty where nothing was launched."""
    site: Site | None = None
    """Where it ran, if elsewhere than its tuner's `opened` says."""


class Interrupted(Frozen):
    """The tuner was told to end, or could not go on, and has ended what was under way. Such a start never counts."""

    type: Literal["interrupted"] = "interrupted"
    work: Work
    number: int | None = None
    """Of the probe, or of the trial under proof; None for an inspection and a trace."""
    why: str
    """The signal's name (SIGINT, SIGTERM, SIGHUP), or what this machine refused, such as `disk full`."""
    time: str


class Retried(Frozen):
    """The user asked for what was lost to be tried again (`resume --retry-lost`); its tries count anew.

    What had been decided without it is open again.
    """

    type: Literal["retried"] = "retried"
    probes: tuple[int, ...] = ()
    """Numbers of the lost probes."""
    proofs: tuple[int, ...] = ()
    """Numbers of the trials whose proofs were lost."""
    time: str


class Searched(Frozen):
    """The search is over: nothing more to try, or the limits are spent."""

    type: Literal["searched"] = "searched"
    why: str
    reason: SearchEnd
    path: tuple[Step, ...]
    """How the graph was walked; empty for a strategy that walks none."""


class ProofStarted(Frozen):
    """The emitted configuration of a trial is about to be relaunched."""

    type: Literal["proof_started"] = "proof_started"
    number: int
    """Of the trial."""
    time: str


class Cause(Frozen):
    """How a rung ended in a search that found nothing to prove."""

    candidate: Candidate
    """What was tried of the rung last, or passed over by prediction."""
    verdict: Literal["ok", "oom", "non_finite", "timeout", "crash", "lost", "unsupported", "passed over"]
    """Kind of its outcome; `ok` where it trained without the headroom, `passed over` where nothing was launched."""
    why: str
    """The same for people, with what stands behind it."""


class Decided(Frozen):
    """The end of the run: the number of the proven winner, or None with the reason."""

    type: Literal["decided"] = "decided"
    winner: int | None
    why: str
    causes: tuple[Cause, ...] = ()
    """How each rung ended, where nothing could be proven."""
    time: str


Entry = (
    Asked
    | Opened
    | Inspected
    | RungTraced
    | Skipped
    | Started
    | Finished
    | Interrupted
    | Retried
    | Searched
    | ProofStarted
    | ProofFinished
    | Decided
)
ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="type")])


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
        """Return where a probe with a verdict ran; None while it has none."""
        verdict, opened = self.finished(number), None
        for entry in self.entries:
            if isinstance(entry, Opened):
                opened = entry.site
            elif entry is verdict:
                return entry.site or opened
        return None

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
