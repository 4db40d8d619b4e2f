"""What a store keeps: a flat row for each trial, and one for each cell of a night.

A **night** is one execution of a sweep, a **cell** one combination of its matrix. Amounts of memory are in bytes, times
in seconds, moments in UTC as ISO 8601.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field

from autotune.candidate import Candidate, DeviceKind
from autotune.outcome import Outcome
from autotune.specs import Evidence
from autotune.validation import Frozen

DIGEST = 24
"""Hexadecimal digits of a digest: 96 bits tell apart more records than anybody will ever make."""

TrialKind = Literal["probe", "rematch", "proof"]
CellState = Literal[
    "proven",
    "nothing_fits",
    "nothing_trained",
    "nothing_proven",
    "model_error",
    "bad_input",
    "failed",
    "interrupted",
]
"""How a cell's run ended. `failed` is this machine's or a cluster's fault, `interrupted` has not ended: neither says
anything of the model."""
JUDGED: frozenset[CellState] = frozenset(
    {"proven", "nothing_fits", "nothing_trained", "nothing_proven", "model_error"}
)
"""The states that say something of the model."""


def digest(value: object) -> str:
    """Return a digest of plain data, the same in any process."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]


class Environment(Frozen):
    """Where something was measured: device, driver and versions."""

    device_kind: DeviceKind
    hardware: str
    """The device, as its vendor calls it."""
    evidence: Evidence
    driver: str | None = None
    packages: dict[str, str] = Field(default_factory=dict)
    """Version of each package that matters, and of Python."""
    machine: dict[str, str] = Field(default_factory=dict)
    """Operating system, C library, processor."""

    def digest(self) -> str:
        """Return what equal environments have in common."""
        return digest(self.model_dump(mode="json"))

    def differences(self, later: Environment) -> tuple[str, ...]:
        """Return what is another one later, each as `torch: 2.12.0 -> 2.13.0`; `none` where there is nothing."""
        was, became = self._leaves(), later._leaves()
        names = [name for name in {**was, **became} if was.get(name) != became.get(name)]
        return tuple(f"{name}: {was.get(name) or 'none'} -> {became.get(name) or 'none'}" for name in names)

    def _leaves(self) -> dict[str, str | None]:
        return {"device": self.hardware, "driver": self.driver, **self.packages, **self.machine}


class TrialRow(Frozen):
    """One measurement of a cell's run: a probe of a candidate, its repetition in the finals, or its proof."""

    kind: TrialKind
    number: int
    """Of the trial in its run, from 1."""
    turn: int = 0
    """Of several rematches or proofs of one trial, from 1; 0 for a probe."""
    time: str
    """When the trial's probe was started."""
    environment: Environment
    candidate: Candidate
    outcome: Outcome
    seconds: float
    """Wall time; 0 where nothing was launched."""
    key: str
    """What another trial must share to have measured the same (`reuse_key`)."""
    budget: int
    """Bytes that the device granted."""
    reused: str = ""
    """The night and run whose outcome this is; empty where it was measured here."""
    passed: bool | None = None
    """Whether a proof held; None for what is none."""
    fits: bool | None = None
    """Whether it trained with the headroom that its goal asks for; None where that is not known."""
    global_step: float | None = None
    """Seconds of a whole global step; None without a speed."""
    tokens_per_second: float | None = None
    """Over all devices, of the tokens of the global step as it was rounded up; None without a speed."""
    interval: float | None = None
    """Half-width of the 95% interval of `tokens_per_second`, of its own steps alone."""


class CellRow(Frozen):
    """How one cell of a night ended, and what it was asked for."""

    sweep: str
    night: str
    """When the sweep began, as its folder is called: nights sort by age."""
    cell: str
    run: str = ""
    """The folder of its run; empty where it did not come that far."""
    state: CellState
    reason: str = ""
    """One sentence, where there is no winner."""
    asked: str = ""
    """Digest of the model's name, goal, device and optimizer: nights are compared that asked for the same."""
    model: str = ""
    model_digest: str = ""
    """Of the configuration, of what trains of it, and of its code."""
    target_tokens: int | None = None
    """The global batch that was asked for; None before the model is known."""
    seq_len: int | None = None
    gpus: int = 1
    nodes: int = 1
    lines: Annotated[int, Field(ge=0)] = 0
    """Lines of the run's journal when this was recorded: of two records of one cell the longer one is the newer."""
    time: str = ""
    """The last moment that the journal names."""
    seconds: float = 0.0
    """Wall time of its probes, rematches and proofs together."""
    trials: int = 0
    """Probes with a verdict."""
    environment: Environment | None = None
    """Where the winner was measured, else where the run was opened; None before that."""
    budget: int | None = None
    """Bytes that the device granted; None before that was known."""
    winner: Candidate | None = None
    alternatives: tuple[Candidate, ...] = ()
    """What the run could not tell from the winner."""
    tokens_per_second: float | None = None
    """The winner's, as its proof showed (simulated: as predicted)."""
    interval: float | None = None
    """Half-width of its 95% interval, drift within the run included."""
    drift: float | None = None
    """Standard deviation of one measurement of the run from the next, as a share of it."""
    proofs: tuple[float, ...] = ()
    """Tokens per second of each proof of the winner that trained, in order: several where the first seemed slower than
    the nights before."""
    global_step: float | None = None
    """Seconds of the winner's global step."""
    step_seconds: tuple[float, ...] = ()
    """Of each measured optimizer step of the winner's proof, in order."""
    peak: int | None = None
    """Most bytes that the winner took of the device: in its probe, or in its proof with evaluation and checkpoint."""


class RunRows(Frozen):
    """All rows of one cell's run, which are stored together or not at all."""

    cell: CellRow
    trials: tuple[TrialRow, ...] = ()
