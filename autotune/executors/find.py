"""From the device that a spec means to what runs probes on it."""

from __future__ import annotations

from autotune.devices.find import find, resolve_device
from autotune.devices.simulated import SimulatedDevice
from autotune.executors.executor import Executor
from autotune.executors.local import LocalExecutor
from autotune.executors.ranks import RanksExecutor
from autotune.executors.simulated import SimulatedExecutor
from autotune.specs import DeviceSpec
from autotune.tracing import Tracer


def find_executor(spec: DeviceSpec, tracer: Tracer, gpus: int = 1) -> Executor:
    """Return the executor of `gpus` ranks: on as many GPUs from the named one on, or each with the cpu's budget.

    A simulated device answers from `tracer`, whatever the number. Raises what `find` raises.
    """
    device = find(spec)
    if isinstance(device, SimulatedDevice):
        return SimulatedExecutor(device, tracer)
    if gpus == 1:
        return LocalExecutor(device)
    if spec.kind == "cpu":
        return RanksExecutor([device] * gpus)
    first = resolve_device(spec)
    others = [find(first.model_copy(update={"index": first.index + rank})) for rank in range(1, gpus)]
    return RanksExecutor([device, *others])
