"""A stand-in for NVML, and the GPUs that it lists."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.devices.monitor.nvml import Gpu, MemoryUse, NoEnergyCounter, NoGpu, NvmlError
from autotune.units import GIB

H100 = Gpu(0, "GPU-aaaa1111", "NVIDIA H100 80GB HBM3", (9, 0), mig=False)
T4 = Gpu(1, "GPU-bbbb2222", "Tesla T4", (7, 5), mig=False)
SPLIT = Gpu(2, "GPU-aaaa3333", "NVIDIA A100-SXM4-40GB", (8, 0), mig=True)
UNKNOWN = Gpu(3, "GPU-dddd4444", "NVIDIA Quux 9000", (12, 0), mig=False)


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

    def driver(self) -> str:
        return "580.1"

    def gpus(self) -> tuple[Gpu, ...]:
        return self.listed

    def memory(self, uuid: str) -> MemoryUse:
        assert uuid in {gpu.uuid for gpu in self.listed}
        if self.broken:
            raise NvmlError("gone")
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
