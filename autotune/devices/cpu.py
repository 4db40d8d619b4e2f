"""The processor as a device: real training under a memory budget that the kernel enforces."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.candidate import Candidate, OffloadPlace
from autotune.devices.allocator import allocator_variables
from autotune.devices.device import PREPARE_TIMEOUT, UnusableDevice
from autotune.devices.host import available_memory, free_disk, total_memory
from autotune.devices.monitor.rapl import lacks_energy
from autotune.environment import processor
from autotune.specs import DeviceFacts
from autotune.units import MIB, format_bytes, format_size

LIBRARIES = 352 * MIB
"""Private memory of a worker that has built a tiny model, without its threads' stacks. Measured (torch 2.13,
transformers 5.23): importing takes 320 MiB + 16 MiB x threads (343, 442 and 830 MiB for 2, 8 and 32 threads,
after one backward pass), the classes of a model and the worker itself take another 30 MiB."""
STACKS_PER_THREAD = 2
"""Thread pools, each with as many threads as cores: the forward's and the backward's."""
_DEFAULT_STACK = 8 * MIB
"""What Linux gives a thread unless `ulimit -s` says otherwise. RLIMIT_DATA counts it whole, used or not."""

_MALLOC = {
    # Every block of 64 KiB or more is mapped by itself and given back at once, and the heap keeps no reserve:
    # so the process's memory is what its tensors take, to 0.1 MiB (a GPT-2 step: 435.9 MiB; with malloc's
    # defaults 10-30% more). MALLOC_ARENA_MAX=1 changes nothing on top of it (435.9 and 436.0 MiB).
    # Fresh mappings cost a page fault for each page, which `allocator.c` spares (`benchmarks/malloc_speed.py`). Huge
    # pages are left to the user: they made it slower where they were tried (docs/log.md).
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_TOP_PAD_": "0",
}
_KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "8"}
"""What oneDNN, and torch on top of it, keep of the kernels that they made for a shape. By default it is more than a
thousand of each: under bf16 the memory of a training whose rows are of many lengths grows with each new one (by 7 to 20
MiB for four layers), and is out after hours. So bounded it stops growing after a few, and is as fast (docs/log.md)."""

_ARROW = {"MIMALLOC_ARENA_EAGER_COMMIT": "0"}
"""Arrow's allocator (mimalloc) reserves 1 GiB at its first use, as memory that can be written. Nothing touches it, and
RLIMIT_DATA counts it: a process that only imports `datasets` took 1,272 MiB of its budget, and with this 264 MiB,
trl included (docs/log.md)."""

_COLLECTIVES = {"TORCH_FR_BUFFER_SIZE": "0"}
"""torch keeps a record of the last 2,000 collectives of a rank ("flight recorder"), each with its stack: the memory of
a rank grew by 2 to 4 MiB in its first thousand steps, which a probe of a few does not see and a proof does."""

_THREADS = "OMP_NUM_THREADS"
_WAIT_POLICY = "OMP_WAIT_POLICY"
"""Threads that wait for each other sleep instead of spinning. Measured (GPT-2, one sequence of 256, 2 cores): with
one busy neighbour a forward and backward pass takes 3-4 s instead of 13-17 s, and alone it is no slower."""


class CpuDevice:
    """This machine's processor with `budget` bytes of private memory for each rank of a probe."""

    def __init__(self, budget: int, ranks: int = 1) -> None:
        """`ranks` share the cores. Raise InputError when the machine has less, or the framework alone needs more."""
        self._budget = budget
        self._ranks = ranks
        self._total = total_memory()
        self._lacks_energy = lacks_energy()
        if budget > self._total:
            raise UnusableDevice(
                f"a budget of {format_bytes(budget)} is more than this machine's memory; at most --device "
                f"cpu:{format_size(self._total // MIB * MIB)}",
                "too much",
            )
        if budget < self.minimum():
            least = -(-self.minimum() // MIB) * MIB
            raise UnusableDevice(
                f"a budget of {format_bytes(budget)} is smaller than what torch, transformers and their threads "
                f"need before there is any model ({format_size(least)}); give more, such as --device cpu:3GiB",
                "too little",
            )

    def facts(self) -> DeviceFacts:
        """Return what the device is. There is no peak FLOP/s: no data sheet states one that torch could reach."""
        return DeviceFacts(
            kind="cpu", name=processor(), torch_name="cpu", budget=self._budget, total=self._total,
            # torch computes in bf16 on any processor; without AVX512-BF16 or AMX it is slow, which probes show.
            dtypes=("bf16",),
            energy_counter="rapl" if not self._lacks_energy else None, lacks_energy=self._lacks_energy,
        )  # fmt: skip

    def minimum(self) -> int:
        """Return what the libraries take, with one stack for each thread of each pool."""
        return LIBRARIES + STACKS_PER_THREAD * _threads(self._ranks) * _stack()

    def environment(self, candidate: Candidate) -> dict[str, str]:
        """Return the variables that make memory exact, and hide any GPU; DeepSpeed has to be told so."""
        tunables = os.environ.get("GLIBC_TUNABLES")
        return {
            **_MALLOC,
            **allocator_variables(),
            # The user's own have their say on memory and speed, so what was measured with them runs with them.
            **({"GLIBC_TUNABLES": tunables} if tunables else {}),
            **{
                name: os.environ.get(name, value)
                for name, value in (_KERNEL_CACHES | _ARROW | _COLLECTIVES).items()
            },
            _WAIT_POLICY: os.environ.get(_WAIT_POLICY, "passive"),
            **threads_variable(self._ranks),
            "CUDA_VISIBLE_DEVICES": "",
            **({"DS_ACCELERATOR": "cpu"} if candidate.engine == "deepspeed" else {}),
        }

    def data_limit(self) -> int | None:
        """Return the budget: the kernel refuses private memory beyond it."""
        return self._budget

    def prepare(self, timeout: float = PREPARE_TIMEOUT) -> None:
        """Do nothing: the budget is each probe's own, whatever else runs."""

    @contextmanager
    def watch(self) -> Iterator[_Blind]:
        """Watch nothing: the worker itself sees its peak, from the kernel."""
        yield _Blind()

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:
        """Return the free bytes of the disk, or of the memory that the device itself is a part of."""
        return free_disk(folder) if place == "disk" else available_memory()


class _Blind:
    peak: int | None = None

    def peak_until(self, moment: float | None) -> int | None:  # noqa: ARG002 - the protocol's signature
        """Return None: nothing was seen."""
        return None


def threads_variable(ranks: int) -> dict[str, str]:
    """Return the variable that keeps one of so many ranks to its share of the cores, unless the user has set it.

    A rank alone has what torch chooses, which on some machines is one thread for two cores.
    """
    if ranks == 1 and _THREADS not in os.environ:
        return {}
    return {_THREADS: os.environ.get(_THREADS, str(_cores(ranks)))}


def _threads(ranks: int) -> int:
    """Return the threads that torch starts at most for each pool of one of so many ranks."""
    asked = threads_variable(ranks).get(_THREADS, "").split(",")[0]
    return int(asked) if asked.isdigit() and int(asked) > 0 else _cores(ranks)


def _cores(ranks: int) -> int:
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def _stack() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _DEFAULT_STACK if soft == resource.RLIM_INFINITY else soft
