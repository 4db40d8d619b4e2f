"""What the CUDA caching allocator reserves for a traced training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from autotune.memory.allocator import AllocatorUsage, CachingAllocator, OutOfDeviceMemory
from autotune.memory.pool import Block
from autotune.timeline.program import Program
from autotune.timeline.timeline import Timeline


def allocator_usage(
    timeline: Timeline,
    micro_batch: int,
    accumulating: bool = False,
    expandable_segments: bool = False,
    *,
    max_split_size: int | None = None,
    capacity: int | None = None,
    device_memory: int | None = None,
    blas_workspace: int = 0,
) -> AllocatorUsage:
    """Run the requests of a training's device through the simulated caching allocator.

    `capacity` and `device_memory` (bytes) are those of `CachingAllocator`.

    `blas_workspace` (bytes) is allocated twice and kept, as cuBLAS does: for the thread of the forward pass at its
    first matrix product, and for autograd's thread at the first of the backward pass. Raises OutOfDeviceMemory, with
    the phase, beyond `capacity`.
    """
    program = timeline.program(micro_batch, accumulating)
    sizes = timeline.of(accumulating).sizes_in("device", micro_batch, rounding=1)
    allocator = CachingAllocator(capacity, expandable_segments, max_split_size, device_memory)
    return simulated(program, sizes, allocator, blas_workspace)


def simulated(
    program: Program, sizes: Sequence[int], allocator: CachingAllocator, blas_workspace: int = 0
) -> AllocatorUsage:
    """Run a program's requests through an allocator, as `allocator_usage` does; `sizes` are of its slots, in bytes."""
    allocate, release = allocator.allocate, allocator.release
    held: dict[int, list[Block]] = defaultdict(list)
    starts = program.workspaces() if blas_workspace else []
    events = program.events
    position = 0
    try:
        for stretch, (begin, end) in enumerate(pairwise([0, *starts, len(events)])):
            if stretch:
                position = begin
                allocate(blas_workspace)
            for position in range(begin, end):
                event = events[position]
                if event >= 0:
                    if sizes[event] > 0:
                        held[event].append(allocate(sizes[event]))
                elif sizes[~event] > 0:  # of a slot that is alive more than once the last goes first
                    release(held[~event].pop())
    except OutOfDeviceMemory as refused:
        refused.phase = program.phase_at(position)[0]
        raise
    return allocator.usage()
