"""What the CUDA caching allocator reserves for a traced training."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.memory.allocator import AllocatorUsage, OutOfDeviceMemory, simulate
from autotune.timeline.timeline import Timeline


def allocator_usage(
    timeline: Timeline,
    micro_batch: int,
    accumulating: bool = False,
    expandable_segments: bool = False,
    *,
    max_split_size: int | None = None,
    capacity: int | None = None,
    blas_workspace: int = 0,
) -> AllocatorUsage:
    """Run the requests of a training's device through the simulated caching allocator.

    `blas_workspace` (bytes) is allocated twice and kept, as cuBLAS does: for the thread of the forward pass at its
    first matrix product, and for autograd's thread at the first of the backward pass. Raises OutOfDeviceMemory, with
    the phase, beyond `capacity`.
    """
    program = timeline.program(micro_batch, accumulating)
    sizes = timeline.of(accumulating).sizes_in("device", micro_batch, rounding=1)
    position = 0

    def requests() -> Iterator[tuple[int, int]]:
        nonlocal position
        for position, name, size in program.requests(sizes, blas_workspace):  # noqa: B007
            yield name, size

    try:
        return simulate(requests(), capacity, expandable_segments, max_split_size)
    except OutOfDeviceMemory as refused:
        refused.phase = program.phase_at(position)[0]
        raise
