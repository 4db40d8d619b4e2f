"""The record of a run: the lines of its journal, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from autotune.candidate import Candidate
from autotune.outcome import Outcome
from autotune.prediction import Prediction
from autotune.specs import ModelFacts
from autotune.trial import History, Trial
from autotune.validation import Frozen


class Opened(Frozen):
    """A tuner began (or went on) to work on the run."""

    type: Literal["opened"] = "opened"
    version: str
    """Of autotune."""
    time: str


class Inspected(Frozen):
    """A worker built the model without memory and said what it is."""

    type: Literal["inspected"] = "inspected"
    facts: ModelFacts
    baseline: int
    """Bytes that interpreter and libraries take on the device before any model."""
    budget: int
    """Bytes that the device grants; a resumed run is judged by the same budget."""


class Step(Frozen):
    """One step of the path through the decision graph: a node, and the edge by which it was left."""

    node: str
    edge: str
    candidate: Candidate
    """The candidate that decided: the one probed, or the largest that fits after growth."""
    evidence: Literal["measured", "predicted"] = "measured"
    """Whether a probe or the memory model says so."""


class Traced(Frozen):
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
    """A probe is about to be launched. Without a `finished` line after it, the tuner was lost on the way."""

    type: Literal["started"] = "started"
    number: int
    candidate: Candidate
    node: str
    why: str
    time: str
    prediction: Prediction | None = None
    """What the memory model expects of it; None where it was not traced."""
    path: tuple[Step, ...] = ()
    """How the graph was walked to this candidate."""


class Finished(Frozen):
    """A probe has its verdict, and nothing of it is left running."""

    type: Literal["finished"] = "finished"
    number: int
    outcome: Outcome
    seconds: float


class Searched(Frozen):
    """The search is over: nothing more to try, or the limits are spent."""

    type: Literal["searched"] = "searched"
    why: str
    path: tuple[Step, ...]
    """How the graph was walked."""


class ProofStarted(Frozen):
    """The emitted configuration of a trial is about to be relaunched."""

    type: Literal["proof_started"] = "proof_started"
    number: int
    """Of the trial."""
    time: str


class ProofFinished(Frozen):
    """What the relaunch showed."""

    type: Literal["proof_finished"] = "proof_finished"
    number: int
    outcome: Outcome
    passed: bool
    why: str
    """One sentence: what held, or which check failed."""
    failed: tuple[str, ...] = ()
    """Names of the checks that failed; empty where the relaunch did not even train."""
    seconds: float


class Decided(Frozen):
    """The end of the run: the number of the proven winner, or None with the reason."""

    type: Literal["decided"] = "decided"
    winner: int | None
    why: str
    time: str


Entry = (
    Opened
    | Inspected
    | Traced
    | Skipped
    | Started
    | Finished
    | Searched
    | ProofStarted
    | ProofFinished
    | Decided
)
ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="type")])


@dataclass(frozen=True)
class Record:
    """What the lines of a journal add up to."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Record:
        """Fold lines into a record."""
        return cls(tuple(entries))

    @property
    def inspection(self) -> Inspected | None:
        """The model's facts, once known."""
        return next((entry for entry in self.entries if isinstance(entry, Inspected)), None)

    @property
    def history(self) -> History:
        """All finished trials, in order."""
        started = {entry.number: entry for entry in self.entries if isinstance(entry, Started)}
        return tuple(
            Trial(
                number=entry.number, candidate=started[entry.number].candidate, node=started[entry.number].node,
                why=started[entry.number].why, outcome=entry.outcome, seconds=entry.seconds,
                prediction=started[entry.number].prediction,
            )
            for entry in self.entries
            if isinstance(entry, Finished)
        )  # fmt: skip

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
    def traced(self) -> tuple[Traced, ...]:
        """What the memory model was taught, in order."""
        return tuple(entry for entry in self.entries if isinstance(entry, Traced))

    @property
    def proofs(self) -> tuple[ProofFinished, ...]:
        """All finished proofs, in order."""
        return tuple(entry for entry in self.entries if isinstance(entry, ProofFinished))

    @property
    def decided(self) -> Decided | None:
        """The end of the run, once reached."""
        return next((entry for entry in reversed(self.entries) if isinstance(entry, Decided)), None)

    def unfinished(self) -> tuple[Started, int] | None:
        """Return the probe that was under way when the tuner was lost, and how often it was started."""
        finished = {entry.number for entry in self.entries if isinstance(entry, Finished)}
        starts = [e for e in self.entries if isinstance(e, Started) and e.number not in finished]
        return (starts[-1], len(starts)) if starts else None

    def unfinished_proofs(self, number: int) -> int:
        """Return how many proofs of a trial were started and never finished."""
        begun = sum(isinstance(e, ProofStarted) and e.number == number for e in self.entries)
        return begun - sum(proof.number == number for proof in self.proofs)

    @property
    def next_number(self) -> int:
        """The number of the next trial, from 1."""
        return 1 + max((entry.number for entry in self.entries if isinstance(entry, Started)), default=0)

    @property
    def seconds(self) -> float:
        """Seconds that finished probes took."""
        return sum(entry.seconds for entry in self.entries if isinstance(entry, Finished))
