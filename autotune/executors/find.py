"""From the device that a spec means to what runs probes on it."""

from __future__ import annotations

from autotune.devices.find import find
from autotune.devices.simulated import SimulatedDevice
from autotune.executors.executor import Executor
from autotune.executors.local import LocalExecutor
from autotune.executors.simulated import SimulatedExecutor
from autotune.specs import DeviceSpec
from autotune.tracing import Tracer


def find_executor(spec: DeviceSpec, tracer: Tracer) -> Executor:
    """Return the executor for a device; a simulated one answers from `tracer`. Raises what `find` raises."""
    device = find(spec)
    return SimulatedExecutor(device, tracer) if isinstance(device, SimulatedDevice) else LocalExecutor(device)
