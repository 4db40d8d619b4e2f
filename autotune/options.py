"""The options of a run, as the command line and a spec YAML give them, and how they become a `RunSpec`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, field_validator

from autotune import assets
from autotune.bounds import Probes, Ranks, Seed, SeqLen, Tolerance, too_many_ranks
from autotune.candidate import Optimizer
from autotune.errors import InputError
from autotune.executors.find import unlaunched
from autotune.lengths import Lengths
from autotune.models.resolve import resolve
from autotune.search.space import Space
from autotune.specs import DeviceSpec, GlobalBatch, Goal, Limits, ModelSpec, RunSpec, StrategyName
from autotune.user_files import OPTIONS, parse_yaml, read_text, require_kind, user_path
from autotune.validation import Frozen

LONGEST_DEFAULT = 1024
"""Sequence length where none is given and the model allows it: long enough to show what attention costs."""

_Value = TypeVar("_Value")


class RunOptions(Frozen):
    """Every option of `autotune run`, by the name that it has in a spec YAML."""

    model: str
    """A preset, a path to a config.json, a hub name, or `module:function`."""
    target_global_batch: str
    """Tokens for each optimizer step over all devices: `4M`, `64Ki`; or `512 samples`."""
    device: str = "auto"
    """`auto`, `cuda`, `cuda:1`, `cpu:3GiB`, or `sim:h100-80gb`."""
    seq_len: SeqLen | None = None
    """Tokens per sequence; by default 1024, or the model's longest if that is less."""
    lengths: str | None = None
    """A file of the dataset's sequence lengths: a CSV or JSON of length and count, or one length a line."""
    optimizer: Optimizer = "adamw"
    """`adamw`, `adamw-8bit`, `adafactor`, `momentum` or `sgd`."""
    gpus: Ranks = 1
    """Devices that train together, on each node."""
    nodes: Ranks = 1
    """Machines that train together. On `cpu` groups of ranks on this machine stand for them, a simulated device prices
    them, and what is exported starts on each."""
    headroom: Annotated[float, Field(ge=0, lt=0.9)] = Goal.model_fields["headroom"].default
    """Share of the device's memory that the winner must leave free."""
    exact: bool = False
    """Only micro-batches that make up the global batch exactly."""
    max_probes: Probes = Limits().max_probes
    """Probes at most."""
    time_budget: str | float | None = None
    """Time for all probes together: `30m`."""
    probe_timeout: str | float = Limits().probe_timeout
    """Time after which a probe is killed."""
    sample_time: str | float = Limits().sample_seconds
    """Time for the measured steps of a probe, where their interval does not narrow earlier."""
    proof_time: str | float = Limits().proof_seconds
    """Time for the training steps of the proof."""
    memory_tolerance: Tolerance = Limits().memory_tolerance
    """Relative difference between proven and recorded peak that is accepted."""
    speed_tolerance: Tolerance = Limits().speed_tolerance
    """Share of the recorded speed that the proof may fall short by."""
    space: str | None = None
    """A search space: a shipped name or a YAML file's path; else `default`, or `multi_gpu` over several devices."""
    strategy: StrategyName = "graph"
    """How the space is searched: `graph` walks its decision graph, `grid` tries everything, `random` draws."""
    seed: Seed = 0
    """Seed of initial weights and data, and of what is drawn."""
    predict: bool = True
    """Let the memory model spare probes."""
    block_class: str | None = None
    """Class name of the repeated transformer block, where it is not found by itself."""
    train: tuple[str, ...] = ()
    """Patterns of the names of modules or parameters that train, such as `*.mlp.gate`; none trains all."""
    trust_remote_code: bool = False
    """Run Python code that comes with a model from the hub."""

    @field_validator("target_global_batch", mode="before")
    @classmethod
    def _accept_numbers(cls, value: object) -> object:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @classmethod
    def gather(
        cls, given: dict[str, Any], file: Path | None, check: Callable[[RunOptions], object] = lambda _: None
    ) -> RunOptions:
        """Join a spec YAML with what the command line gives; the command line wins.

        Raises InputError, where there is a mistake with those that `check` finds in the rest.
        """
        data: dict[str, Any] = {}
        source = "options"
        if file is not None:
            file = user_path(file, "--spec")
            source = str(file)
            data = parse_yaml(read_text(file), source)
            require_kind(data, OPTIONS, source)
            data = {key.replace("-", "_"): value for key, value in data.items()}
        return cls.load_with({**data, **given}, source, check)


def to_spec(options: RunOptions, find_device: Callable[[DeviceSpec], DeviceSpec], base: Path) -> RunSpec:
    """Resolve model, space and device into a `RunSpec`. Raises one InputError with every problem found.

    `find_device` checks the device and replaces `auto` by the one there is. Relative paths start at `base`.
    """
    problems: list[str] = []

    def attempt(flag: str, parse: Callable[[], _Value]) -> _Value | None:
        try:
            return parse()
        except InputError as error:
            problems.extend(error.problems)
        except ValueError as error:
            problems.append(f"{flag}: {error}")
        return None

    model = attempt("--model", lambda: _model(options, base))
    device = attempt("--device", lambda: find_device(DeviceSpec.parse(options.device)))
    target = attempt("--target-global-batch", lambda: GlobalBatch.parse(options.target_global_batch))
    space = attempt(
        "--space",
        lambda: load_space(
            default_space(options.gpus * options.nodes, options.lengths is not None)
            if options.space is None
            else options.space
        ),
    )
    limits = attempt("limits", lambda: _limits(options))
    lengths = attempt("--lengths", lambda: read_lengths(options.lengths, base))
    longest = lengths.longest if lengths else LONGEST_DEFAULT
    seq_len = (
        attempt("--seq-len", lambda: sequence_length(options.seq_len, model, longest)) if model else None
    )
    if reason := too_many_ranks(options.gpus, options.nodes):
        problems.append(reason)
    if device and (reason := unlaunched(device.kind, options.nodes)):
        problems.append(reason)
    if problems or not (model and device and target and space and limits and seq_len):
        raise InputError(problems)
    goal = Goal(
        target=target,
        seq_len=seq_len,
        lengths=lengths and lengths.within(seq_len),
        gpus=options.gpus * options.nodes,
        nodes=options.nodes,
        exact=options.exact,
        headroom=options.headroom,
    )
    return RunSpec(
        model=model, device=device, goal=goal, optimizer=options.optimizer, space=space.model_dump(mode="json"),
        space_name=space.name, strategy=options.strategy, seed=options.seed, predict=options.predict, limits=limits,
    )  # fmt: skip


def default_space(gpus: int, with_lengths: bool = False) -> str:
    """Return the name of the space for so many devices, and for data of which the lengths are known.

    Several devices can share the work in several ways; sequences of unequal lengths can be padded or packed.
    """
    if gpus > 1:
        return "multi_gpu"
    return "packing" if with_lengths else "default"


def read_lengths(file: str | None, base: Path) -> Lengths | None:
    """Return a dataset's length histogram, where one is given. Raises InputError with every mistake in it."""
    return None if file is None else Lengths.read(base / user_path(file, "--lengths"))


def load_space(name: str) -> Space:
    """Return a search space: the user's own file where `name` is a path to one, else a shipped one."""
    return Space.parse(assets.find_text(name), name)


def _model(options: RunOptions, base: Path) -> ModelSpec:
    found = resolve(
        options.model, block_class=options.block_class, trust_remote_code=options.trust_remote_code, base=base
    )
    return found.model_copy(update={"train": options.train})


def _limits(options: RunOptions) -> Limits:
    return Limits.load(
        {
            "max_probes": options.max_probes, "time_budget": options.time_budget,
            "probe_timeout": options.probe_timeout, "sample_seconds": options.sample_time,
            "proof_seconds": options.proof_time,
            "memory_tolerance": options.memory_tolerance, "speed_tolerance": options.speed_tolerance,
        },
        "limits",
    )  # fmt: skip


def sequence_length(asked: int | None, model: ModelSpec, default: int = LONGEST_DEFAULT) -> int:
    """Return the tokens of a sequence: as asked, or the default. Raises ValueError beyond what the model takes."""
    longest = longest_sequence(model.config or {})
    if asked is None:
        return min(default, longest or default)
    if longest is not None and asked > longest:
        raise ValueError(f"{model.name} takes sequences of at most {longest} tokens, not {asked}")
    return asked


def longest_sequence(config: dict[str, Any]) -> int | None:
    """Return the longest sequence that a transformers configuration allows, or None where it sets no limit."""
    for key in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if isinstance(config.get(key), int):
            return int(config[key])
    return None


def shipped_spaces() -> tuple[str, ...]:
    """Return the names of the search spaces that ship with autotune."""
    return tuple(name for name in assets.shipped_names() if name != "hardware")
