"""From the options of a run to its spec."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from autotune import assets
from autotune.bounds import too_many_ranks
from autotune.cluster import read_target
from autotune.devices.find import FindDevice, recorded_grid
from autotune.devices.recorded_grid import NotRecorded, RecordedGrid
from autotune.errors import InputError, Problem
from autotune.executors.find import unlaunched
from autotune.lengths import read_lengths
from autotune.models.resolve import resolve
from autotune.models.sequence_length import LONGEST_DEFAULT, sequence_length
from autotune.objective import Objective, Price
from autotune.options import Limits, RunOptions
from autotune.script.command import carried, parse_command, title
from autotune.script.space import space_of, within
from autotune.search.shipped import default_space
from autotune.search.space import Space
from autotune.specs import ABSENT, DeviceSpec, GlobalBatch, Goal, ModelSpec, RunSpec
from autotune.techniques.consent import ByConsent, allowed
from autotune.training_command import TrainingCommand
from autotune.user_files import OPTIONS, parse_yaml, read_text, require_kind, user_path
from autotune.validation import flag

_Value = TypeVar("_Value")


def read_options(
    given: dict[str, Any], file: Path | None, check: Callable[[RunOptions], object] = lambda _: None
) -> RunOptions:
    """Join a spec file with what the command line gives; the command line wins.

    Raises InputError, where there is a mistake with those that `check` finds in the rest.
    """
    if file is None:
        return RunOptions.load_with(given, "options", check, flags=RunOptions.model_fields)
    file = user_path(file, "--spec")
    source = str(file)
    data = parse_yaml(read_text(file), source)
    require_kind(data, OPTIONS, source)
    data = {key.replace("-", "_"): value for key, value in data.items()}
    return RunOptions.load_with({**data, **given}, source, check, flags=given)


def to_spec(options: RunOptions, find_device: FindDevice, base: Path) -> RunSpec:
    """Resolve model, space and device into a `RunSpec`. Raises one InputError with every problem found.

    `find_device` checks that the device can hold the ranks, and replaces `auto` by the one there is. Relative paths
    start at `base`.
    """
    problems: list[str] = []

    def attempt(option: str, parse: Callable[[], _Value]) -> _Value | None:
        try:
            return parse()
        except InputError as error:
            problems.extend(Problem(problem, option) for problem in error.problems)
        except ValueError as error:
            problems.append(Problem(f"{flag(option)}: {error}", option))
        return None

    cluster = attempt("cluster", lambda: read_target(options.cluster, options.partition, base))
    elsewhere = options.cluster is not None
    named = attempt("model", lambda: _named(options, base)) if options.model is not None else None
    model = named if options.command is None else attempt("command", lambda: _commanded(options, named, base))
    device = attempt("device", lambda: _device(options, find_device))
    target = attempt("target_global_batch", lambda: GlobalBatch.parse(options.target_global_batch))
    grid = attempt("device", lambda: recorded_grid(device)) if device else None
    consented = attempt("allow", lambda: allowed(options.allow))
    command = model.command if model else None
    space = attempt("space", lambda: _space(options, grid, command, consented or ()))
    lengths = attempt("lengths", lambda: read_lengths(options.lengths, base))
    longest = lengths.longest if lengths else LONGEST_DEFAULT
    bounding = named or model
    seq_len = (
        attempt("seq_len", lambda: sequence_length(options.seq_len, bounding, longest)) if bounding else None
    )
    objective = attempt("price_per_hour", lambda: _objective(options))
    problems += objective.problems() if objective else []
    if reason := too_many_ranks(options.gpus, options.nodes):
        problems.append(Problem(reason, "gpus"))
    if device and not elsewhere and (reason := unlaunched(device.kind, options.nodes)):
        problems.append(Problem(reason, "nodes"))
    problems += _both(options)
    if command is not None and device and device.kind in ABSENT:
        problems.append(Problem(f"--device {device}: a command needs a device on which it can run", "device"))
    if command is not None and options.objective == "energy":
        problems.append(
            Problem("--objective energy: the energy of a command's steps is not measured", "objective")
        )
    if command is not None and elsewhere:
        problems.append(Problem("--cluster: a command is probed on this machine alone", "cluster"))
    if command is not None and options.nodes > 1:
        problems.append(Problem("--nodes: a command is probed on this machine alone", "nodes"))
    if command is not None and options.lengths is not None:
        problems.append(Problem("--lengths: a command's batches are taken as they are", "lengths"))
    if command is not None:
        problems += _untold(options, command)
    if problems or not (
        model and device and target and space and seq_len and objective and consented is not None
    ):
        raise InputError(problems)
    goal = Goal(
        target=target,
        seq_len=seq_len,
        lengths=lengths and lengths.within(seq_len),
        gpus=options.gpus * options.nodes,
        nodes=options.nodes,
        exact=options.exact,
        headroom=options.headroom,
        objective=objective,
    )
    if grid is not None and (problems := grid.mismatch(model, goal)):
        raise NotRecorded(problems)
    return RunSpec(
        model=model, device=device, goal=goal, optimizer=options.optimizer, space=space.model_dump(mode="json"),
        space_name=space.name,
        # What a command's mapping does not express cannot be tried, allowed or not: its space has it already.
        allow=() if command is not None else tuple(one.name for one in consented), strategy=options.strategy,
        seed=options.seed, predict=options.predict,
        launcher=options.launcher, cluster=cluster,
        limits=options.part(Limits),
    )  # fmt: skip


def _untold(options: RunOptions, command: TrainingCommand) -> list[Problem]:
    """Return what was asked for that the command is not told, and so would not do."""
    problems = []
    if options.optimizer != RunOptions.model_fields["optimizer"].default and "optimizer" not in command.axes:
        why = "nothing tells it to the command, which trains as its program says; map it with --axes, or leave it out"
        problems.append(Problem(f"--optimizer {options.optimizer}: {why}", "optimizer"))
    if options.model is None:
        if options.seq_len is not None and "seq_len" not in carried(command):
            why = "nothing tells it to the command: write {seq_len}, map it with --axes, or leave it out"
            problems.append(Problem(f"--seq-len {options.seq_len}: {why}", "seq_len"))
        problems += [
            Problem(f"{flag(name)} belongs to --model: a command's program decides that itself", name)
            for name in ("train", "block_class")
            if getattr(options, name)
        ]
    return problems


def _both(options: RunOptions) -> list[Problem]:
    """Return what does not go with a command, or without one."""
    if options.command is None:
        lone = [name for name in ("axes", "evaluation_command") if getattr(options, name) is not None]
        return [Problem(f"{flag(name)} belongs to --command", name) for name in lone]
    return []


def _space(
    options: RunOptions,
    grid: RecordedGrid | None,
    command: TrainingCommand | None,
    consented: tuple[ByConsent, ...],
) -> Space:
    """Return the space that was named; else what a grid was recorded of, what a command can say, or the default."""
    if command is not None:
        return within(_loaded(options.space), command) if options.space else space_of(command, consented)
    if options.space is not None:
        return _loaded(options.space)
    if grid is not None:
        return Space.load(grid.header.space, f"{grid.source}: space")
    return _loaded(default_space(options.gpus * options.nodes, options.lengths is not None))


def _loaded(name: str) -> Space:
    """Return what `load_space` does. A sweep's cells have few spaces, and to parse one takes longer than all else."""
    return _parsed(assets.find_text(name), name)


@lru_cache(maxsize=16)
def _parsed(text: str, name: str) -> Space:
    return Space.parse(text, name)


def _device(options: RunOptions, find_device: FindDevice) -> DeviceSpec:
    """Return the device asked for, which is there and holds the ranks. Raises InputError."""
    device = DeviceSpec.parse(options.device)
    return find_device(device, options.gpus * options.nodes) if options.cluster is None else _on_nodes(device)


def _on_nodes(device: DeviceSpec) -> DeviceSpec:
    """Return a device that is a node's, which is looked at there. Raises InputError for what is none's."""
    if device.kind in {"cpu", "cuda"} and not device.index:
        return device
    instead = (
        "a job has the GPUs that the partition's keys ask for, numbered from 0"
        if device.kind == "cuda"
        else "name what the nodes have: --device cuda, or cpu:3GiB"
        if device.kind == "auto"
        else "it needs no node; leave --cluster out"
    )
    raise InputError(f"--device {device} with --cluster: {instead}", about="device")


def _objective(options: RunOptions) -> Objective:
    price = options.price_per_hour
    return Objective(
        name=options.objective,
        speed_share=options.speed_share,
        price=None if price is None else Price.parse(price),
    )


def _commanded(options: RunOptions, named: ModelSpec | None, base: Path) -> ModelSpec:
    assert options.command is not None
    command = parse_command(options.command, options.axes, options.evaluation_command, base)
    return ModelSpec(name=title(command), source="command", command=command, traced_as=named)


def _named(options: RunOptions, base: Path) -> ModelSpec:
    assert options.model is not None
    found = resolve(
        options.model, block_class=options.block_class, trust_remote_code=options.trust_remote_code, base=base
    )
    return found.model_copy(update={"train": options.train})
