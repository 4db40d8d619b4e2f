"""From the device that a spec means to what runs probes on it."""

from __future__ import annotations

from autotune.devices.find import find, recorded_grid, resolve_device
from autotune.devices.replay import ReplayDevice
from autotune.devices.simulated import SimulatedDevice
from autotune.errors import InputError
from autotune.executors.executor import Executor
from autotune.executors.local import LocalExecutor
from autotune.executors.ranks import RanksExecutor
from autotune.executors.replay import ReplayExecutor
from autotune.executors.script import ScriptExecutor
from autotune.executors.simulated import SimulatedExecutor
from autotune.probe.launch import Launcher, launch
from autotune.specs import DeviceSpec
from autotune.tracing.client import LocalTracer, Tracer
from autotune.tracing.replay import ReplayTracer
from autotune.training_command import TrainingCommand
from autotune.units import format_bytes


def find_executor(
    spec: DeviceSpec,
    tracer: Tracer,
    gpus: int = 1,
    nodes: int = 1,
    launcher: Launcher = launch,
    command: TrainingCommand | None = None,
) -> Executor:
    """Return the executor of `gpus` ranks: on as many GPUs from the named one on, or each with the cpu's budget.

    A `command` of the user's own starts its ranks itself, all at once.

    They are in `nodes` machines, for which on the cpu groups of ranks stand. A simulated device answers from `tracer`,
    a replayed one from its grid, whatever the numbers. All that runs is launched by `launcher`. Raises what `find`
    raises, and InputError for several machines with GPUs.
    """
    if reason := unlaunched(resolve_device(spec).kind, nodes):
        raise InputError(reason)
    device = find(spec, ranks=gpus)
    if isinstance(device, SimulatedDevice):
        return SimulatedExecutor(device, tracer, launcher)
    if isinstance(device, ReplayDevice):
        return ReplayExecutor(device)
    if gpus == 1:
        return LocalExecutor(device, launcher) if command is None else ScriptExecutor([device])
    if spec.kind == "cpu":
        needed, there = gpus * device.facts().budget, device.facts().total
        if needed > there:
            raise InputError(
                f"{gpus} ranks of {format_bytes(device.facts().budget)} each take {format_bytes(needed)}, and this "
                f"machine has {format_bytes(there)}; give each less (--device cpu:...), or --gpus and --nodes fewer",
                about="gpus",
            )
        return (
            RanksExecutor([device] * gpus, launcher, nodes)
            if command is None
            else ScriptExecutor([device] * gpus)
        )
    first = resolve_device(spec)
    others = [find(first.model_copy(update={"index": first.index + rank})) for rank in range(1, gpus)]
    return (
        RanksExecutor([device, *others], launcher) if command is None else ScriptExecutor([device, *others])
    )


def find_tracer(
    spec: DeviceSpec, launcher: Launcher = launch, workers: int | None = None, gpus: int = 1
) -> Tracer:
    """Return what traces for a device: workers on this machine, or for a replay the grid, which knows what it cost.

    `workers` is how many may run at a time: one a core, unless given. `gpus` are the ranks that will share this
    machine. Raises what `find` raises.
    """
    local = LocalTracer(launcher=launcher, workers=workers, ranks=gpus)
    grid = recorded_grid(spec)
    return local if grid is None else ReplayTracer(grid, local)


def unlaunched(kind: str, nodes: int) -> str | None:
    """Return why probes cannot be launched on so many nodes of devices of a kind (as `--device` names it), or None."""
    if nodes == 1 or kind in {"cpu", "sim", "replay"}:
        return None
    return (
        f"--nodes {nodes}: probes on GPUs run on this machine alone. Tune one machine with --nodes 1 and start the "
        "export on each, or price all ranks on a simulated device: --device sim:h100-80gb"
    )
