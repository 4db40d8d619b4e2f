"""What is kept with a probe that ran out of memory, for the person who wants to see why.

On CUDA: the allocator's summary, and a snapshot with the history of allocations that PyTorch's viewer
(https://pytorch.org/memory_viz) opens. On the CPU: a page of what the process held.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from autotune.worker.measuring import memory_breakdown
from autotune.worker.measuring.memory_meter import Meter
from autotune.worker.training import Training

SUMMARY = "memory_summary.txt"
SNAPSHOT = "snapshot.pickle"
HISTORY = 30_000
"""Allocations and frees that the history holds: a step or two of a large model, at up to some KB of host
memory.
"""


class CudaWitness:
    """Stands by the CUDA allocator, and keeps the evidence at the very moment it refuses a request.

    Python stacks are recorded only until `rest()`, which the probe calls when warm-up is over: a stack costs
    about 2 us (torch's own figure), which must not be in the timings, while nearly every refusal comes in the
    build or in the first two steps. A later one still gets a snapshot, with the latest events and no stacks
    of theirs. Recording takes host memory, none on the device.
    """

    def __init__(self, device: torch.device, folder: Path) -> None:
        self._device = device
        self._folder = folder
        self.requested: int | None = None
        """Bytes of the last request that was refused."""
        self.free: int | None = None
        """Bytes that were free on the device at that moment."""
        torch.cuda.memory._record_memory_history(
            enabled="all", context="all", stacks="python", max_entries=HISTORY
        )
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            attach(self._refused)

    def rest(self) -> None:
        """Record no more stacks; the history so far is kept (switching recording off would clear it)."""
        torch.cuda.memory._record_memory_history(
            enabled="all", context=None, stacks="python", max_entries=HISTORY
        )

    def discard(self) -> None:
        """Delete what was kept: every refusal was survived, as a larger evaluation's, or something else failed."""
        for name in (SUMMARY, SNAPSHOT):
            (self._folder / name).unlink(missing_ok=True)

    def _refused(self, device: int, requested: int, granted: int, free: int) -> None:  # noqa: ARG002
        """Keep what was requested and what was free, in bytes. The allocator calls this before anything is unwound."""
        self.requested, self.free = requested, free
        try:
            (self._folder / SUMMARY).write_text(torch.cuda.memory_summary(self._device), encoding="utf-8")
            torch.cuda.memory._dump_snapshot(str(self._folder / SNAPSHOT))
        except Exception as error:  # noqa: BLE001 - the evidence is a help; the verdict must come without it
            print(f"autotune: the allocator's evidence could not be kept: {error}", file=sys.stderr)


def keep_cpu_summary(folder: Path, training: Training | None, meter: Meter) -> None:
    """Write what the process holds now; on a full disk, or without memory for it, write nothing."""
    try:
        page = memory_breakdown.summary(training, meter.baseline + meter.now(), meter.free())
        (folder / SUMMARY).write_text(page, encoding="utf-8")
    except (OSError, MemoryError) as error:
        print(f"autotune: the memory summary could not be kept: {error}", file=sys.stderr)
