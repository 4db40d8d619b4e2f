"""Every option of a run, a proof and an estimate: each declared once, with its type, bounds, default and description.

The command line, spec files, `autotune.tune()` and `autotune.estimate()` take their options from these records. Help
shows the fields of a class under the class's subject. Nothing here may be slow to import: `run --help` waits for it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from autotune.bounds import (
    Headroom,
    HelpName,
    MicroBatch,
    Probes,
    RankCount,
    Seconds,
    Seed,
    SeqLen,
    SpeedShare,
    Steps,
    Tolerance,
)
from autotune.candidate import Optimizer
from autotune.objective import SPEED_SHARE, ObjectiveName
from autotune.units import parse_duration
from autotune.validation import Frozen

HEADROOM = 0.05
"""Share of a device's memory that stays free where nobody says otherwise."""
SIMULATED_GPU = "h100-sxm-80gb"
"""The GPU that is simulated where nobody names one and none is there: published training runs use it most."""


StrategyName = Literal["guided", "graph", "optuna", "grid", "random"]
"""What decides which candidate is tried next; `search/strategies.py` holds what each is."""
DEFAULT_STRATEGY: StrategyName = "guided"
"""Needs predictions, and walks the space's graph where there are none."""
LauncherName = Literal["warm", "cold"]
"""How a worker's processes come to be: `warm` forks a server that has imported the libraries, `cold` starts anew."""
File = Annotated[str, HelpName("FILE")]
"""The path of a file."""


class Options(Frozen):
    """Options of a verb. Flags, keys of a spec file and Python keywords are the names of the fields."""

    subject: ClassVar[str] = ""
    """Heading under which help shows the fields that a class declares."""


class ModelOptions(Options):
    """Which model is estimated."""

    subject: ClassVar[str] = "Model and data"

    model: str
    """A preset, a path to a config.json, a hub name, or `module:function`."""


_MISSING = object()
"""Stands for a model that nobody named."""


class TrainingOptions(Options):
    """What trains: a model that autotune trains itself, or a command of the user's own."""

    subject: ClassVar[str] = "Model and data"

    model: str | None = None
    """A preset, a path to a config.json, a hub name, or `module:function`."""
    command: Annotated[str | None, HelpName("COMMAND")] = None
    """The command that starts your own training, in place of a model, with placeholders for what may change:
    'python train.py --bs {micro_batch} --accum {accumulation} {checkpointing:--gc} --out {output}'. With --model beside
    it, which names the model that it trains, that model's trace says what to expect until probes do."""
    axes: File | None = None
    """A YAML file that maps axes to flags, variables or keys of configuration files of --command; or a shipped one's
    name."""
    evaluation_command: Annotated[str | None, HelpName("COMMAND")] = None
    """A second command, which evaluates and saves as your training does: a proof runs it too."""

    @model_validator(mode="before")
    @classmethod
    def _needs_one(cls, data: object) -> object:
        """Have a model be required where there is no command, and a record has no model of its own."""
        if cls.model_fields["model"].default is not None:
            return data
        if isinstance(data, dict) and data.get("command") is None and data.get("model") is None:
            return {**data, "model": _MISSING}
        return data

    @field_validator("model", mode="before")
    @classmethod
    def _is_given(cls, value: object) -> object:
        if value is _MISSING:
            raise PydanticCustomError("missing", "Field required")
        return value


class DataOptions(Options):
    """How a model trains, on what data."""

    subject: ClassVar[str] = "Model and data"

    seq_len: SeqLen | None = None
    """Tokens per sequence; by default 1024, or the model's longest if that is less."""
    lengths: File | None = None
    """A file of the dataset's sequence lengths: a CSV or JSON of length and count, or one length a line."""
    train: tuple[str, ...] = ()
    """Pattern of the names of modules or parameters that train, such as `*.mlp.gate`; without any, all train."""
    block_class: str | None = None
    """Class name of the repeated transformer block, where it is not found by itself."""
    trust_remote_code: bool = False
    """Run Python code that comes with a model from the hub."""


class RankOptions(Options):
    """How many devices train together."""

    subject: ClassVar[str] = "Device"

    gpus: RankCount = 1
    """Devices that train together, on each node."""
    nodes: RankCount = 1
    """Machines that train together. On `cpu` groups of ranks on this machine stand for them, a simulated device prices
    them, and what is exported starts on each."""


class DeviceOptions(RankOptions):
    """What to tune for."""

    device: str = "auto"
    """What to train on: `auto`, `cuda`, `cuda:1`, `cpu:3GiB`, `sim:h100-80gb`, or `replay:FILE`."""


class GoalOptions(Options):
    """What a winner has to meet."""

    subject: ClassVar[str] = "Goal"

    target_global_batch: str
    """Tokens for each optimizer step over all devices: `4M`, `64Ki`; or `512 samples`."""
    exact: bool = False
    """Only micro-batches that make up the global batch exactly."""
    headroom: Headroom = HEADROOM
    """Share of the device's memory that the winner must leave free."""

    @field_validator("target_global_batch", mode="before")
    @classmethod
    def _accept_numbers(cls, value: object) -> object:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class ObjectiveOptions(Options):
    """In what the winner has to be the best."""

    subject: ClassVar[str] = "Objective"

    objective: ObjectiveName = "speed"
    """What the winner is best in: tokens per second, the least memory at --speed-share of the best speed, or the least
    cost or energy for each token."""
    speed_share: SpeedShare = SPEED_SHARE
    """Share of the best measured speed that a winner of objective `memory` has to reach."""
    price_per_hour: Annotated[str, HelpName("PRICE")] | None = None
    """What one device costs an hour, such as 2.99 or '2.99 USD': the result then says what a million tokens cost."""

    @field_validator("price_per_hour", mode="before")
    @classmethod
    def _accept_price(cls, value: object) -> object:
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class SearchOptions(Options):
    """Among what the search chooses, and how."""

    subject: ClassVar[str] = "Search"

    space: str | None = None
    """A search space: a shipped name or a YAML file's path; else `default`, `multi_gpu` over several devices, or
    `packing` with `--lengths`."""
    allow: Annotated[tuple[str, ...], HelpName("NAME,...")] = ()
    """What may be tried though it changes what is learned, beside what the space lists; `graph` comes to it where
    nothing else fits."""
    strategy: StrategyName = DEFAULT_STRATEGY
    """How a space is searched: by predicted speed through all of it (`guided`); along its decision `graph` alone; by
    Optuna's TPE (`optuna`); by probing all of it (`grid`); or at `random` by the seed."""
    optimizer: Optimizer = "adamw"
    """The optimizer that all candidates train with."""
    predict: bool = True
    """Let the memory model spare probes: pass over what is predicted not to fit, grow to what should."""
    seed: Seed = 0
    """Seed of initial weights and data, and of what is drawn."""

    @field_validator("allow", mode="before")
    @classmethod
    def _part_names(cls, value: object) -> object:
        """Take names one by one, or several with commas between them."""
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list | tuple):
            return value
        return [
            part.strip() if isinstance(part, str) else part
            for names in listed
            for part in (names.split(",") if isinstance(names, str) else [names])
            if part != ""
        ]


class ProofLimits(Options):
    """How long a proof takes, and how near it has to come."""

    subject: ClassVar[str] = "Limits"

    proof_time: Seconds = 60.0
    """Time of the training steps in the proof, all of them; longer global steps are cut to fewer micro-steps."""
    memory_tolerance: Tolerance = 0.05
    """Relative difference between proven and recorded peak that is accepted."""
    speed_tolerance: Tolerance = 0.10
    """Share of the recorded speed that the proof may fall short by."""

    @field_validator("proof_time", mode="before")
    @classmethod
    def _parse_duration(cls, value: object) -> object:
        return parse_duration(value) if isinstance(value, str) else value


class Limits(ProofLimits):
    """How much a run may spend, and how exact it must be. Times are in seconds."""

    max_probes: Probes = 40
    """Probes at most."""
    training_time: Seconds = 3600.0
    """Time that the training is to take, at least: what would not save its own probe in it is not probed (by the
    strategy `guided`), nor measured again (finals)."""
    time_budget: Seconds | None = None
    """Time for all probes together; the search ends when it is spent, finals and proof still run."""
    probe_timeout: Seconds = 600.0
    """Time after which a probe is killed."""
    sample_time: Seconds = 8.0
    """Time of the measured steps of a probe after warm-up, at most; less where their interval narrows earlier."""
    sample_steps: Annotated[int, Field(ge=2)] = 20
    """Measured global steps in a probe, at most."""

    @field_validator("training_time", "time_budget", "probe_timeout", "sample_time", mode="before")
    @classmethod
    def _parse_durations(cls, value: object) -> object:
        return parse_duration(value) if isinstance(value, str) else value


class ProbeOptions(Options):
    """How probes run."""

    subject: ClassVar[str] = "Probes"

    cluster: File | None = None
    """A cluster file: probes, inspections and traces are jobs on its nodes, whatever this machine has."""
    partition: Annotated[str, HelpName("NAME")] | None = None
    """The partition of the cluster file; needed where it has several."""
    launcher: LauncherName = "warm"
    """How probes start: forked from a process that has imported torch, or each cold. Proofs are always cold."""


class RunOptions(
    TrainingOptions,
    DataOptions,
    GoalOptions,
    ObjectiveOptions,
    DeviceOptions,
    SearchOptions,
    ProbeOptions,
    Limits,
):
    """Every option of `autotune run`, by the name that it has in a spec file."""


class VerifyOptions(ProofLimits):
    """The options of `autotune verify`."""

    subject: ClassVar[str] = "Device"

    device: str | None = None
    """Another device than the recorded one."""
    trust_remote_code: bool = False
    """Run Python code that comes with a model from the hub, whatever the file says."""


class GpuOptions(RankOptions):
    """What to predict for."""

    gpu: str = SIMULATED_GPU
    """A GPU of hardware.yaml, which need not be there: its id or the vendor's name."""
    headroom: Headroom = HEADROOM
    """Share of the GPU's memory that must stay free."""


class BatchOptions(Options):
    """How much a training step takes at a time."""

    subject: ClassVar[str] = "Batch"

    micro_batch: MicroBatch = 1
    """Samples on each GPU."""
    accumulation_steps: Steps | None = None
    """Micro-steps for each optimizer step; by default 8, and 1 where the optimizer steps in backward."""


class EstimateOptions(ModelOptions, DataOptions, GpuOptions, BatchOptions):
    """The options of `autotune estimate`, beside the axes of a candidate."""

    subject: ClassVar[str] = "Table of rungs, where no technique is named"

    space: str | None = None
    """The search space whose rungs make up the table; else `default`, or `packing` with --lengths."""
