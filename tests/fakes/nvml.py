"""A stand-in for NVML, and the GPUs that it lists."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.devices.monitor.monitor import Gpu, MemoryUse, MonitorError, NoEnergyCounter, NoGpu
from autotune.outcome import EnergyCounter
from autotune.units import GIB

H100 = Gpu(0, "GPU-aaaa1111", "NVIDIA H100 80GB HBM3", ("bf16", "fp8"))
T4 = Gpu(1, "GPU-bbbb2222", "Tesla T4", ())
SPLIT = Gpu(2, "GPU-aaaa3333", "NVIDIA A100-SXM4-40GB", ("bf16",), split="is split")
UNKNOWN = Gpu(3, "GPU-dddd4444", "NVIDIA Quux 9000", ("bf16", "fp8"))


@dataclass
class FakeNvml:
    """NVML as the tests need it: memory use is a script, of which the last value stays."""

    listed: tuple[Gpu, ...] = (H100, T4, SPLIT, UNKNOWN)
    used: list[int] = field(default_factory=lambda: [GIB])
    users: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    total: int = 80 * GIB
    broken: bool = False
    counted: list[float] | None = field(default_factory=lambda: [1000.0])
    """Joules, as a script whose last value stays; None where the GPU has no counter."""
    library: str = "NVML"
    counter: EnergyCounter = "nvml"

    def driver(self) -> str:
        return "580.1"

    def gpus(self) -> tuple[Gpu, ...]:
        return self.listed

    def memory(self, uuid: str) -> MemoryUse:
        assert uuid in {gpu.uuid for gpu in self.listed}
        if self.broken:
            raise MonitorError("gone")
        used = self.used.pop(0) if len(self.used) > 1 else self.used[0]
        return MemoryUse(self.total, self.total - used)

    def joules(self, uuid: str) -> float:
        assert uuid in {gpu.uuid for gpu in self.listed}
        if self.counted is None:
            raise NoEnergyCounter("NVML has no counter of energy for this GPU, as for none before Volta")
        return self.counted.pop(0) if len(self.counted) > 1 else self.counted[0]

    def processes(self, uuid: str) -> tuple[int, ...]:
        assert uuid in {gpu.uuid for gpu in self.listed}
        return self.users.pop(0) if len(self.users) > 1 else self.users[0]


def no_nvml() -> FakeNvml:
    raise NoGpu("NVML says 'NVML Shared Library Not Found'")
