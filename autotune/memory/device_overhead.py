"""What a process takes on a device beside the tensors: a CUDA context, communicators, a compiler, the libraries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from autotune.candidate import Candidate
from autotune.memory.calibration import Prior
from autotune.techniques.sharding import SHARDINGS
from autotune.units import MIB

CUDA_CONTEXT = 620 * MIB
"""Bytes that a process's CUDA context takes on the device, where no worker has measured them: 621 MiB on an H200 with
torch 2.11, before the first operator."""
CUDA_KERNELS = 150 * MIB
"""Bytes that the context grows by while a training runs: kernels are loaded at their first use. 152 MiB there."""
CUDA_SPREAD = 150 * MIB
"""Spread that is assumed with both: contexts differ by GPU and driver, kernels by model. Where a worker has measured
the context, half of it."""
NCCL_BUFFERS = 512 * MIB
"""Bytes that NCCL takes on each GPU for one communicator, where no probe has measured them. Users of 8 H100 see 1.06 GB
of context and NCCL together before any all-to-all (NVIDIA/nccl issue 1685); it grows with channels and algorithms, not
with ranks beyond two nodes (NVIDIA's answer in issue 864)."""
NCCL_SPREAD = 256 * MIB
"""Spread that is assumed with it."""
GLOO_GROUP = 24 * MIB
"""Private memory of one process group on the cpu device: the stacks of three threads, 8 MiB each. Measured with torch
2.13 on 2, 4 and 8 ranks: 24 MiB for the group of all, 48 more for the two of a mesh of two dimensions."""
CPU_LATER = 4 * MIB
"""Private memory that a CPU process takes beyond what its worker measured and its tensors: the heap of two steps."""
CPU_SPREAD = 24 * MIB
"""Spread that is assumed with it. In bf16 oneDNN maps 16 MiB more than it touches; MKL's buffers differ by shape."""
CPU_COMPILER = 62 * MIB
"""Private memory that the compiler keeps in a CPU process: 39 to 41 MiB of imports, and 21 to 23 MiB of what it made
for the blocks of a GPT-2-like and a Llama-like model (torch 2.13, with an empty cache and a filled one)."""
FOREIGN = Prior(offset=128 * MIB, slope=0.25, rung_offset=64 * MIB, rung_slope=0.1, noise=0.005)
"""Of a program that is not autotune's: another loss, another copy of the weights, buffers of its own. Assumed; two
probes of a rung outweigh it."""


@dataclass(frozen=True)
class DeviceOverhead:
    """What a run's device takes and grants beside the tensors, in bytes."""

    kind: Literal["cpu", "cuda"]
    baseline: int
    """What the process holds beside the model: interpreter and libraries, or the CUDA context."""
    spread: int
    """Standard deviation of what is not known of the baseline."""
    blas_workspace: int = 0
    """Of one cuBLAS handle."""
    device_memory: int | None = None
    """All of a GPU's, by which expandable segments reserve addresses; None where it is not known."""
    foreign: bool = False
    """Whether what is probed is a program of the user's own, and a trace only of what is like it."""

    def held(self, candidate: Candidate) -> int:
        """Return the baseline with what the candidate's groups of ranks and its compiler take beside it."""
        within_node = SHARDINGS[candidate.sharding].within_node
        in_rows = within_node or candidate.tensor_parallel > 1
        if self.kind == "cpu":  # DeepSpeed makes another group of all ranks (`_clone_world_group`)
            groups = GLOO_GROUP * (2 * in_rows + (candidate.engine == "deepspeed"))
            return self.baseline + groups + CPU_COMPILER * (candidate.compile != "none")
        # A communicator is made for the groups that talk, of which all ranks together are then none.
        two = within_node or (candidate.tensor_parallel > 1 and candidate.sharding != "none")
        return self.baseline + NCCL_BUFFERS * two

    @classmethod
    def measured(
        cls,
        kind: Literal["cpu", "cuda"],
        baseline: int,
        blas_workspace: int = 0,
        ranks: int = 1,
        device_memory: int | None = None,
    ) -> DeviceOverhead:
        """Return the overhead of a device whose baseline a worker measured; 0 on CUDA means that it could not.

        A baseline is measured before the first kernel is loaded and before any communicator exists: kernels come on
        top, and over several ranks NCCL's buffers or gloo's threads.
        """
        if kind == "cpu":
            return cls("cpu", baseline + CPU_LATER + (GLOO_GROUP if ranks > 1 else 0), CPU_SPREAD)
        held = (baseline or CUDA_CONTEXT) + CUDA_KERNELS
        spread = CUDA_SPREAD // 2 if baseline else CUDA_SPREAD
        if ranks > 1:
            held, spread = held + NCCL_BUFFERS, math.isqrt(spread**2 + NCCL_SPREAD**2)
        return cls("cuda", held, spread, blas_workspace, device_memory)

    def prior(self) -> Prior:
        """Return how far a prediction on this device may be off before any probe."""
        if self.foreign:
            return FOREIGN
        if self.kind == "cpu":
            return Prior(offset=self.spread)
        return Prior(offset=self.spread, slope=0.03)
