"""What one probe of a traced training asks the device's memory for: composed once, and priced at any micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.memory.allocator import SMALL_LIMIT, AllocatorUsage, CachingAllocator
from autotune.memory.reserved import simulated
from autotune.memory.unlimited import OutOfAddresses, reserved_by_growing, reserved_by_segments
from autotune.timeline.step_events import CUDA_BLOCK, PLACES
from autotune.timeline.timeline import Timeline

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]


class Requests:
    """Allocations and releases of a probe's device, for one or for all micro-batches whose events are the same.

    These are all from 2 on, and 1 by itself.
    """

    def __init__(self, timeline: Timeline, micro_batch: int, accumulating: bool) -> None:
        """`micro_batch` is any of those that are priced."""
        import numpy as np  # 0.1 s that `--help` does not wait for

        self.timeline = timeline.of(accumulating)
        slots = self.timeline.slots
        program = timeline.program(micro_batch, accumulating)
        here = np.array(slots.place, dtype=np.int64) == PLACES.index("device")
        self._base = np.array(slots.base, dtype=np.int64) * here
        self._slope = np.array(slots.slope, dtype=np.int64) * here
        self._events = np.array(program.events, dtype=np.int64)
        self._rounding = CUDA_BLOCK if self.timeline.device == "cuda" else 1
        self._program = program
        self._with_workspaces: Numbers | None = None

    def allocated(self, micro_batch: int) -> int:
        """Return the most bytes alive at one time, as `Timeline.allocated` does."""
        if not len(self._events):
            return 0
        sizes = self._base + self._slope * micro_batch
        return int(self._levels(-(-sizes // self._rounding) * self._rounding, self._events).max())

    def usage(
        self,
        micro_batch: int,
        expandable_segments: bool = False,
        max_split_size: int | None = None,
        blas_workspace: int = 0,
    ) -> AllocatorUsage:
        """Return what the CUDA caching allocator makes of them where the device never refuses; bytes.

        The same as `autotune.memory.reserved.allocator_usage` has it, sooner.
        """
        sizes = self._base + self._slope * micro_batch
        try:
            return self._unlimited(sizes, expandable_segments, max_split_size, blas_workspace)
        except OutOfAddresses:
            allocator = CachingAllocator(None, expandable_segments, max_split_size)
            return simulated(self._program, sizes.tolist(), allocator, blas_workspace)

    def _unlimited(
        self, sizes: Numbers, expandable_segments: bool, max_split_size: int | None, blas_workspace: int
    ) -> AllocatorUsage:
        import numpy as np

        events = self._events
        if blas_workspace:
            sizes = np.append(sizes, [blas_workspace, blas_workspace])
            events = self._events_with_workspaces()
        slots = np.where(events >= 0, events, ~events)
        asked = sizes[slots] > 0
        events, slots = events[asked], slots[asked]
        blocks = -(-sizes // CUDA_BLOCK)
        listed = blocks.tolist()
        in_small = blocks[slots] <= SMALL_LIMIT // CUDA_BLOCK
        pools = [(small, in_small == small) for small in (True, False)]
        taken = blocks[slots]
        reserved = 0
        for small, own in pools:
            stream = events[own].tolist()
            if expandable_segments:
                reserved += reserved_by_growing(stream, listed, small)
            else:
                found = reserved_by_segments(stream, listed, small, max_split_size)
                reserved += found.reserved
                taken[own] = found.sizes
        signs = np.where(events >= 0, 1, -1)
        return AllocatorUsage(
            requested_peak=_most(sizes[slots] * signs),
            allocated_peak=_most(taken * signs) * CUDA_BLOCK,
            reserved_peak=reserved * CUDA_BLOCK,
            retries=0,
        )

    def _events_with_workspaces(self) -> Numbers:
        """Return the events in which cuBLAS takes its two workspaces, as slots behind all others, and keeps them."""
        import numpy as np

        if self._with_workspaces is None:
            starts, behind = self._program.workspaces(), len(self._base)
            # A slot's release has the number of its mirror image: it stays, however many slots there are.
            self._with_workspaces = np.insert(self._events, starts, [behind, behind + 1])
        return self._with_workspaces

    def _levels(self, sizes: Numbers, events: Numbers) -> Numbers:
        import numpy as np

        # Releases index from the end, as in `Program.levels`.
        levels: Numbers = np.concatenate([sizes, -sizes[::-1]])[events].cumsum()
        return levels


def _most(deltas: Numbers) -> int:
    """Return the most that is there at one time of what comes and goes."""
    return max(0, int(deltas.cumsum().max())) if len(deltas) else 0
