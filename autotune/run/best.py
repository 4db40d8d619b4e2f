"""What `best.yaml` holds: the chosen configuration, what was measured of it, and where.

Production training, `autotune export` and `autotune verify` start from this file alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from autotune.accumulation import Accumulation
from autotune.bounds import Bytes, MicroBatch, RankCount, Seed, SeqLen
from autotune.candidate import Candidate
from autotune.errors import InputError
from autotune.lengths import Lengths
from autotune.notebook import html_table
from autotune.objective import Objective
from autotune.options import DEFAULT_STRATEGY, StrategyName
from autotune.outcome import (
    AttentionKernel,
    ChosenBy,
    Communication,
    Drift,
    Memory,
    StepEnergy,
    StepTiming,
    Stress,
)
from autotune.run.commented_yaml import commented_text
from autotune.run.record import Unknown
from autotune.specs import Evidence, ModelFacts, ModelSpec
from autotune.techniques.families import title as title_of
from autotune.training_command import TrainingCall
from autotune.units import format_bytes
from autotune.user_files import parse_yaml, read_text, require_kind, user_path
from autotune.validation import Frozen
from autotune.variables import Variable, VariableValue

BEST_TITLE = "best.yaml of autotune"
VERSION = 1
"""Raised with every change that an older autotune would misread."""


class BestDevice(Frozen):
    """The device that the numbers are of."""

    name: str
    """What people call it, such as the GPU's product name."""
    kind: Literal["cuda", "cpu"]
    torch_name: Annotated[str, Field(pattern=r"^(cpu|cuda:[0-9]{1,4})$")]
    """torch's name in the processes that were measured, which see no other: `cpu` or `cuda:0`."""
    number: Annotated[int, Field(ge=0)] = 0
    """N of the `--device cuda:N` that they were on, where `verify` goes unless it is told another."""
    driver: str | None = None
    """Version of the GPU's driver; None on a cpu."""


class Check(Frozen):
    """One comparison of the proof with what was recorded."""

    name: str
    recorded: float | None
    """The recorded number; None where only the proof has one."""
    proven: float | None
    """The number that the proof showed; None where the proof did not come that far."""
    tolerance: float | None
    """Relative difference that is allowed; None where the check is a plain yes or no."""
    floor: float | None = None
    """Difference that is allowed however small the record is, in the unit of both: what differs from one run to
    the next on the same device. None where there is none."""
    interval: float | None = None
    """Half-width of the 95% interval of the difference: what noise explains, beside the tolerance; None without one."""
    passed: bool


class Proof(Frozen):
    """What a cold relaunch from this file showed."""

    passed: bool
    why: str
    """One sentence: what held, or which check failed."""
    checks: tuple[Check, ...] = ()
    optimizer_steps: int | None = None
    """Optimizer steps of training as it was recorded."""
    micro_steps: int | None = None
    """Micro-steps of each of these; fewer than `accumulation.steps` where three whole global steps took too long."""
    peak: Bytes | None = None
    """Most that the process took of the device in all that the proof did; null where it did not come to its end."""
    plain_peak: Bytes | None = None
    """Most that the process took of the device in these, with the longest rows."""
    stresses: tuple[Stress, ...] = ()
    """Steps that load memory more than those, each with its peak; none may be beyond the budget."""
    losses: tuple[float, ...] = ()
    """Training loss of every optimizer step, in order; an even choice of at most 100."""
    evaluation_loss: float | None = None
    evaluation_micro_batch: MicroBatch | None = None
    """Sequences (samples) that one device evaluates at a time: run, and found to fit."""
    checkpoint_bytes: Bytes | None = None
    seconds: float
    """Wall time of the whole relaunch."""


class Figure(Frozen):
    """A number with the half-width of its 95% interval."""

    value: float
    interval: float


class Alternative(Frozen):
    """A configuration that what was measured does not tell from the winner, by the objective."""

    candidate: Candidate
    """The configuration; micro_batch counts sequences (samples) per device."""
    tokens_per_second: float
    """As measured, over all devices."""
    tokens_per_second_interval: float
    """Half-width of its 95% interval, drift included."""
    peak: Bytes
    """What counted against the budget."""


class ComparedFinalist(Frozen):
    """A finalist that was measured again in alternation with the winner."""

    candidate: Candidate
    """The configuration; micro_batch counts sequences (samples) per device."""
    slower: float
    """By what share of the winner's time it was slower; below 0 where it was faster."""
    slower_interval: float
    """Half-width of its 95% interval."""
    rounds: int
    """In which both were measured."""


class NewerBest(InputError):
    """A `best.yaml` is of a format that this version does not read yet."""


class Best(Frozen):
    """The configuration to train with. Each key of the file has the meaning given here."""

    version: Literal[1] = 1
    """Version of this file's format."""
    run: str
    """The run that found this configuration."""
    created: str
    """When the file was written (UTC)."""
    evidence: Evidence
    """Where the numbers come from: measured by probes, predicted for a simulated device, or replayed from a record."""
    candidate: Candidate
    """The chosen configuration; micro_batch counts sequences (samples) per device."""
    accumulation: Accumulation
    """How the global batch adds up: effective = micro_batch x tokens_per_sample x world_size x steps."""
    seq_len: SeqLen
    """Tokens per sequence; of a row, where sequences are padded or packed."""
    lengths: Lengths | None = None
    """How long the dataset's sequences are, as (length, number) pairs; null where all are as long."""
    gpus: RankCount
    """World size: devices that train together, on all nodes; those of a tensor-parallel group share one model."""
    nodes: RankCount = 1
    """Machines that the devices are in."""
    seed: Seed = 0
    headroom: Annotated[float, Field(ge=0, lt=0.9)]
    """Share of the budget that had to stay free."""
    tokens_per_second: float
    """Tokens per second of wall time of a whole global step, over all devices."""
    tokens_per_second_interval: float
    """Half-width of its 95% interval, drift between measurements included."""
    drift: Drift | None = None
    """By how much measurements of this run differ beyond their own steps' spread; null for predictions."""
    objective: Objective = Objective()
    """What it is the best in, of what fitted; cost has the order of speed, since all had the same devices."""
    chosen_by: ChosenBy = "speed"
    """What made it the winner: what the objective compares; or prediction, memory, speed or proof, where that leaves
    alternatives."""
    alternatives: tuple[Alternative, ...] = ()
    """What the objective does not tell from it: not worse by more than the intervals explain."""
    finals: tuple[ComparedFinalist, ...] = ()
    """Finalists that were measured again in alternation with it, because probes did not tell them apart."""
    share_of_best_speed: Figure | None = None
    """Its speed over that of the fastest that fitted, as both were measured; null before it was chosen."""
    cost_per_million_tokens: Figure | None = None
    """In the currency of objective.price, of all devices; null where no price was given."""
    energy: StepEnergy | None = None
    """Recorded joules of the parts of a global step, on all devices; null where they were not asked for."""
    joules_per_token: Figure | None = None
    """The same for each token of the global batch; null likewise."""
    seconds_per_global_step: Annotated[float, Field(gt=0)]
    mfu: float | None = None
    """Model FLOPs utilization, 0 to 1; null where the device's peak is not known."""
    attention: str | None = None
    """The attention implementation that ran, as the model reports it."""
    attention_kernels: tuple[AttentionKernel, ...] = ()
    """Which of torch's attention kernels ran under it (simulated: are assumed); empty where none is known."""
    evaluation_micro_batch: MicroBatch | None = None
    """Sequences (samples) that one device should evaluate at a time, predicted by a trace; `proof` says what did."""
    memory: Memory
    """Recorded memory in bytes: peaks of one device while it trained."""
    timing: StepTiming
    """Recorded parts of a global step, in seconds."""
    communication: Communication | None = None
    """Seconds of each part in which ranks communicated; null on one rank, and where the backend does not tell."""
    proof: Proof | None = None
    """What the cold relaunch of this configuration showed; null before it."""
    strategy: StrategyName = DEFAULT_STRATEGY
    """How the space was searched."""
    allowed: tuple[str, ...] = ()
    """What the run was allowed to try beside its space though it changes what is learned (--allow), by name."""
    unknown: tuple[Unknown, ...] = ()
    """What the search does not know: candidates of which a probe or proof was ended from outside each time.
    One of them may be faster; `autotune resume --retry-lost` tries them again."""
    notes: tuple[str, ...] = ()
    """What a reader must know before relying on the numbers."""
    device: BestDevice
    """The device that the numbers are of."""
    variables: dict[Variable, VariableValue] = Field(default_factory=dict)
    """Environment variables that the numbers were recorded under, and that training should have too.

    Those that autotune itself sets, and no others: they end in a script that a shell runs.
    """
    environment: dict[str, str]
    """Versions and machine that the numbers depend on."""
    counts_tokens: bool = True
    """Whether the global batch was asked for in tokens, to which a command's rows are held then; else in samples."""
    command: TrainingCall | None = None
    """How production training starts where a command of the user's own was probed: an argument vector, which needs no
    shell, with `{output}` for the folder that it writes to; null for a model that autotune trains."""
    facts: ModelFacts
    """What the model turned out to be when it was built."""
    model: ModelSpec
    """The model, complete: building it needs no other file."""

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        """Refuse a hand-edited file that describes a batch that was not measured."""
        shared = " x candidate.tensor_parallel" if self.candidate.tensor_parallel > 1 else ""
        pairs = (
            ("candidate.micro_batch", self.candidate.micro_batch, "accumulation.micro_batch",
             self.accumulation.micro_batch),
            ("gpus", self.gpus, f"accumulation.world_size{shared}",
             self.accumulation.world_size * self.candidate.tensor_parallel),
            ("facts.tokens_per_sample", self._tokens_per_row, "accumulation.tokens_per_sample",
             self.accumulation.tokens_per_sample),
        )  # fmt: skip
        for one, value, other, expected in pairs:
            if value != expected:
                raise ValueError(
                    f"{one} ({value}) and {other} ({expected}) differ; tune again rather than edit one"
                )
        return self

    @property
    def _tokens_per_row(self) -> int:
        if self.lengths is None:
            return self.facts.tokens_per_sample
        return self.lengths.tokens_per_row(self.candidate.sequences, self.seq_len)

    def peak(self) -> int:
        """Return the bytes that count against the budget: as recorded, or in the proof where that took more."""
        proven = None if self.proof is None else self.proof.peak
        return max(self.memory.peak(), proven or 0)

    def free(self) -> int:
        """Return the bytes of the budget that the peak left untouched (at least 0)."""
        return max(0, self.memory.budget - self.peak())

    def title(self) -> str:
        """Return the configuration for people: `bf16 + checkpointing, adamw`; of a command, what it was told of it."""
        command = self.model.command
        if command is None:
            return f"{title_of(self.candidate)}, {self.candidate.optimizer}"
        return title_of(self.candidate, command.axes) or "as the command's program has it"

    def _repr_html_(self) -> str:
        """Return what a notebook shows of it."""
        memory, batch = self.memory, self.accumulation
        rows = [
            ("configuration", self.title()),
            ("micro-batch", f"{self.candidate.micro_batch} x {batch.tokens_per_sample:,} tokens"),
            ("global batch", batch.equation()),
            ("speed", f"{self.tokens_per_second:,.0f} ± {self.tokens_per_second_interval:,.0f} tokens/s"),
            ("memory", f"{format_bytes(self.peak())} of {format_bytes(memory.budget)} at the peak"),
            ("evidence", self.evidence),
            *([("proof", self.proof.why)] if self.proof is not None else []),
            *(("note", note) for note in self.notes),
        ]
        return html_table((), rows, f"{self.model.name} on {self.device.name}")

    def to_yaml(self) -> str:
        """Return the text of `best.yaml`: stable order, comments on the keys, sizes in bytes and in GiB."""
        return commented_text(self)

    @classmethod
    def read(cls, file: str | Path) -> Self:
        """Read a `best.yaml`, or the one in a run's folder. Raises InputError."""
        file = user_path(file, "best.yaml")
        file = file / "best.yaml" if os.path.isdir(file) else file
        return cls.from_yaml(read_text(file), str(file))

    @classmethod
    def from_yaml(cls, text: str, source: str) -> Self:
        """Read the text of a `best.yaml`. Raises InputError with every problem, each naming `source`."""
        data = parse_yaml(text, source)
        require_kind(data, "a best.yaml", source)
        if isinstance(data.get("version"), int) and data["version"] > VERSION:
            raise NewerBest(
                f"{source}: its format is version {data['version']}, this autotune reads {VERSION}; install "
                "the autotune that wrote it, or a newer one"
            )
        stated = _take_computed(data)
        best = cls.load(data, source)
        computed = {name: getattr(best.accumulation, name) for name in stated}
        if problems := [
            f"{source}: accumulation.{name} is {value}, but its factors give {computed[name]}"
            for name, value in stated.items()
            if value != computed[name]
        ]:
            raise InputError(problems)
        return best


def _take_computed(data: dict[str, Any]) -> dict[str, Any]:
    """Take out the results that the file shows for its reader but that follow from other keys."""
    accumulation = data.get("accumulation")
    if not isinstance(accumulation, dict):
        return {}
    names = [name for name in Accumulation.model_computed_fields if name in accumulation]
    return {name: accumulation.pop(name) for name in names}
