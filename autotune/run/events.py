"""The lines of a run's journal: what happened, in the order in which it did."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from autotune.candidate import Candidate
from autotune.outcome import Outcome
from autotune.prediction import Prediction, Priced
from autotune.search.path import SearchEnd, Step
from autotune.site import Site
from autotune.specs import DeviceSpeed, ModelFacts, RunSpec
from autotune.trial import ProofFinished, RematchFinished
from autotune.validation import Frozen

Work = Literal["inspection", "trace", "probe", "rematch", "proof"]
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
    speed: DeviceSpeed | None = None
    """What a device without a data sheet was measured to reach; None where there is one, or it was not measured."""
    written: tuple[str, ...] = ()
    """Files that a command of the user's own wrote outside of its scratch folder."""


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
    ahead: int = 0
    """Probes that were still to come then, about, this one included; 0 where that was not told."""


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
    reused: str = ""
    """The night and the run that measured it, where nothing was launched now; empty where it was measured here."""
    written: tuple[str, ...] = ()
    """Files that a command of the user's own wrote outside of its scratch folder."""


class Interrupted(Frozen):
    """The tuner was told to end, or could not go on, and has ended what was under way. Such a start never counts."""

    type: Literal["interrupted"] = "interrupted"
    work: Work
    number: int | None = None
    """Of the probe, or of the trial under rematch or proof; None for an inspection and a trace."""
    why: str
    """The signal's name (SIGINT, SIGTERM, SIGHUP), or what this machine refused, such as `disk full`."""
    time: str


class Reopened(Frozen):
    """The winner's file (`best.yaml`) was lost or damaged: what was decided is decided once more from the record."""

    type: Literal["reopened"] = "reopened"
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


class Surveyed(Frozen):
    """What the models of memory and speed say of configurations around the winner, by all that was measured."""

    type: Literal["surveyed"] = "surveyed"
    winner: int
    """Number of the trial that it is about."""
    priced: tuple[Priced, ...]
    time: str


class RematchStarted(Frozen):
    """A trial that the search could not tell from the best is about to be measured again."""

    type: Literal["rematch_started"] = "rematch_started"
    number: int
    """Of the trial."""
    round: int
    """From 1."""
    finalists: tuple[int, ...]
    """The trials of the round, in the order in which they are measured."""
    time: str


class ProofStarted(Frozen):
    """The emitted configuration of a trial is about to be relaunched."""

    type: Literal["proof_started"] = "proof_started"
    number: int
    """Of the trial."""
    time: str


class LastVerdict(Frozen):
    """How a rung ended in a search that found nothing to prove."""

    candidate: Candidate
    """What was tried of the rung last, or passed over by prediction."""
    verdict: Literal["ok", "oom", "non_finite", "timeout", "crash", "lost", "unsupported", "passed over"]
    """Kind of its outcome; `ok` where it trained without the headroom, `passed over` where nothing was launched."""
    why: str
    """The same for people, with what stands behind it."""


class Offer(Frozen):
    """A value that changes what is learned and so was not tried, where nothing that was tried fits."""

    name: str
    """What `--allow` calls it."""
    candidate: Candidate
    """It on the leanest rung of the search that it goes with, at the smallest micro-batch."""
    prediction: Prediction | None = None
    """What that would take; None where it was not priced."""
    reason: str = ""
    """Why not; empty where the run predicts nothing."""


class Decided(Frozen):
    """The end of the run: the number of the proven winner, or None with the reason."""

    type: Literal["decided"] = "decided"
    winner: int | None
    why: str
    causes: tuple[LastVerdict, ...] = ()
    """How each rung ended, where nothing could be proven."""
    offers: tuple[Offer, ...] = ()
    """What may be allowed, where nothing fits."""
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
    | Reopened
    | Retried
    | Searched
    | Surveyed
    | RematchStarted
    | RematchFinished
    | ProofStarted
    | ProofFinished
    | Decided
)
ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="type")])
