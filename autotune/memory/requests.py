"""What one probe of a traced training asks the device's memory for: composed once, and priced at any micro-batch."""

from __future__ import annotations

import hashlib
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from autotune.memory.allocator import SMALL_LIMIT, AllocatorUsage, expandable_segment_bytes
from autotune.memory.unlimited import (
    ADDRESS,
    AT_ONCE,
    FOR_GOOD,
    LARGEST,
    MOST_BLOCKS,
    Growths,
    OutOfAddresses,
    empty_segment,
    mapped,
    reserved_by_segments,
)
from autotune.timeline.step_events import CUDA_BLOCK, PLACES
from autotune.timeline.timeline import Timeline

SIZE_BITS = 31
"""Of a request in what tells stretches apart: it is less than `LARGEST` blocks."""

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]


class _Stream(NamedTuple):
    """The events of a probe, at whatever micro-batch."""

    events: Numbers
    slots: Numbers
    """Of each event."""
    for_good: NDArray[np.bool_]
    """Whether an event allocates what is never released."""


class _Asked(NamedTuple):
    """What is asked for at one micro-batch."""

    stream: _Stream
    sizes: Numbers
    """Bytes of each slot; at most 0 where it takes nothing on the device."""
    blocks: Numbers
    """The same in blocks of 512 B."""
    taken: Numbers
    """Blocks of each event."""

    def of_pool(self, small: bool) -> NDArray[np.intp]:
        """Return which events are those of the small or of the large pool."""
        import numpy as np

        return np.flatnonzero(((self.taken <= SMALL_LIMIT // CUDA_BLOCK) == small) & (self.taken > 0))


class Requests:
    """Allocations and releases of a probe's device, for one or for all micro-batches whose events are the same.

    These are all from 2 on, and 1 by itself.
    """

    def __init__(
        self,
        timeline: Timeline,
        micro_batch: int,
        accumulating: bool,
        growths: Growths | None = None,
        device_memory: int | None = None,
    ) -> None:
        """`micro_batch` is any of those that are priced; `growths` is what others remember with this one.

        `device_memory` (bytes) is that of `autotune.memory.reserved.allocator_usage`.
        """
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
        self._growths = growths or Growths()
        self._space = min(MOST_BLOCKS, -(-expandable_segment_bytes(device_memory) // CUDA_BLOCK))
        self._cuts = [start for start, phase, _ in program.marks if phase in {"forward", "optimizer"}]
        self._with_workspaces: Numbers | None = None
        self._streams: dict[bool, _Stream] = {}
        self._lines: tuple[Numbers, Numbers] | None = None
        self._large: dict[tuple[int, int], int] = {}
        """What expandable segments of the large pool come to, by micro-batch and workspace."""

    def allocated(self, micro_batch: int, blas_workspace: int = 0) -> int:
        """Return the most bytes alive at one time, as `Timeline.allocated` does; with cuBLAS' workspaces, if given."""
        events = self._events_of(blas_workspace)
        if not len(events):
            return 0
        if self._rounding == 1 and not blas_workspace:  # the bytes after each event are on a line
            if self._lines is None:
                self._lines = self._levels(self._base, events), self._levels(self._slope, events)
            base, slope = self._lines
            return int((base + slope * micro_batch).max())
        return self._alive(micro_batch, blas_workspace, self._rounding)

    def usage(
        self,
        micro_batch: int,
        expandable_segments: bool = False,
        max_split_size: int | None = None,
        blas_workspace: int = 0,
    ) -> AllocatorUsage:
        """Return what the CUDA caching allocator makes of them where the device never refuses; bytes.

        The same as `autotune.memory.reserved.allocator_usage` has it, sooner, up to the addresses of an expandable
        segment, 9/8 of the device's memory. What takes more fits in no case: then it is what would be reserved on a
        device without a limit, but at least all of these. Beyond a terabyte, which no GPU has, what is alive at one
        time stands for what is reserved: that is refused by either, and simulating it took seconds.
        """
        import numpy as np

        try:
            asked = self._asked(micro_batch, blas_workspace)
            taken, reserved = asked.taken, 0
            if expandable_segments:
                reserved = self._grown(asked, small=True) + self._of_large(asked, micro_batch, blas_workspace)
            else:
                for small in (True, False):
                    own = asked.of_pool(small)
                    stream, sizes = asked.stream.events[own].tolist(), asked.blocks.tolist()
                    found = reserved_by_segments(stream, sizes, small, max_split_size)
                    reserved += found.reserved
                    taken[own] = found.sizes
        except OutOfAddresses:
            alive = self.allocated(micro_batch, blas_workspace)
            return AllocatorUsage(
                requested_peak=self._alive(micro_batch, blas_workspace, 1),
                allocated_peak=alive, reserved_peak=alive, retries=0,
            )  # fmt: skip
        signs = np.where(asked.stream.events >= 0, 1, -1)
        return AllocatorUsage(
            requested_peak=_most(np.maximum(asked.sizes[asked.stream.slots], 0) * signs),
            allocated_peak=_most(np.maximum(taken, 0) * signs) * CUDA_BLOCK,
            reserved_peak=reserved * CUDA_BLOCK,
            retries=0,
        )

    def reserved_at_least(
        self, micro_batch: int, expandable_segments: bool = False, blas_workspace: int = 0
    ) -> int:
        """Return bytes that `usage` reserves at least, in less time: in the small pool what is alive at one time."""
        import numpy as np

        if not expandable_segments:
            return self.allocated(micro_batch, blas_workspace)
        try:
            asked = self._asked(micro_batch, blas_workspace)
            own = asked.of_pool(small=True)
            alive = _most(asked.taken[own] * np.where(asked.stream.events[own] >= 0, 1, -1))
            large = self._of_large(asked, micro_batch, blas_workspace)
            return (mapped(alive, small=True) + large) * CUDA_BLOCK
        except OutOfAddresses:
            return self.allocated(micro_batch, blas_workspace)

    def reserved_at_most(
        self, micro_batch: int, expandable_segments: bool = False, blas_workspace: int = 0
    ) -> int | None:
        """Return bytes that `usage` reserves at most, in less time: as if nothing in the small pool served again.

        None where that is not told so: without expandable segments, or where addresses run out.
        """
        if not expandable_segments:
            return None
        try:
            asked = self._asked(micro_batch, blas_workspace)
            own = asked.of_pool(small=True)
            made = int(asked.taken[own[asked.stream.events[own] >= 0]].sum())
            return (
                mapped(made, small=True) + self._of_large(asked, micro_batch, blas_workspace)
            ) * CUDA_BLOCK
        except OutOfAddresses:
            return None

    def _asked(self, micro_batch: int, blas_workspace: int) -> _Asked:
        import numpy as np

        sizes, stream = self._base + self._slope * micro_batch, self._stream(blas_workspace)
        if blas_workspace:
            sizes = np.append(sizes, [blas_workspace, blas_workspace])
        blocks = -(-sizes // CUDA_BLOCK)
        if int(blocks.max(initial=0)) >= LARGEST:
            raise OutOfAddresses
        return _Asked(stream, sizes, blocks, blocks[stream.slots])

    def _of_large(self, asked: _Asked, micro_batch: int, blas_workspace: int) -> int:
        """Return the blocks that expandable segments of the large pool map. Computed once."""
        key = micro_batch, blas_workspace
        if key not in self._large:
            self._large[key] = self._grown(asked, small=False)
        return self._large[key]

    def _grown(self, asked: _Asked, small: bool) -> int:
        """Return the blocks that expandable segments of a pool map, stretch by stretch. Raises OutOfAddresses."""
        try:
            return self._grown_within(self._space, asked, small)
        except OutOfAddresses:
            if self._space == MOST_BLOCKS:
                raise
            return max(self._space, self._grown_within(MOST_BLOCKS, asked, small))

    def _grown_within(self, space: int, asked: _Asked, small: bool) -> int:
        """Return the same of a segment with addresses for so many blocks."""
        import numpy as np

        blocks, own = asked.blocks, asked.of_pool(small)
        stream, for_good = asked.stream.events[own], asked.stream.for_good[own]
        cuts = np.searchsorted(own, self._cuts)
        at_once = np.zeros(len(own), dtype=bool)
        at_once[:-1] = (stream[:-1] >= 0) & (stream[1:] == ~stream[:-1])
        at_once[cuts[(cuts > 0) & (cuts < len(own))] - 1] = False  # what a stretch leaves the next one finds
        kept = np.ones(len(own), dtype=bool)
        kept[1:] = ~at_once[:-1]
        own, stream, for_good, at_once = own[kept], stream[kept], for_good[kept], at_once[kept]
        # What tells a stretch from others: slots by their numbers where they are released later, and how much.
        told = np.where(for_good, LARGEST - 1, np.where(at_once, LARGEST - 2, stream)) << SIZE_BITS
        told += asked.taken[own]
        stream += FOR_GOOD * for_good + AT_ONCE * at_once
        listed: list[list[int]] = []

        def stretch(begin: int, end: int) -> tuple[list[int], list[int], list[int]]:
            if not listed:
                listed.extend((blocks.tolist(), (blocks << ADDRESS).tolist()))
            return stream[begin:end].tolist(), listed[0], listed[1]

        segment = empty_segment(small, space)
        for begin, end in pairwise([0, *np.searchsorted(own, self._cuts).tolist(), len(own)]):
            if begin == end:
                continue
            digest = hashlib.blake2b(told[begin:end].data, digest_size=16).digest()
            segment = self._growths.after(segment, digest, partial(stretch, begin, end))
        return segment.mapped

    def _events_of(self, blas_workspace: int) -> Numbers:
        """Return all events; with a workspace those in which cuBLAS takes its two, as slots behind all others."""
        import numpy as np

        if not blas_workspace:
            return self._events
        if self._with_workspaces is None:
            starts, behind = self._program.workspaces(), len(self._base)
            self._with_workspaces = np.insert(self._events, starts, [behind, behind + 1])
        return self._with_workspaces

    def _stream(self, blas_workspace: int) -> _Stream:
        """Return the events of `_events_of` with what is known of them. Computed once."""
        import numpy as np

        kind = blas_workspace > 0
        if kind not in self._streams:
            events = self._events_of(blas_workspace)
            slots = np.where(events >= 0, events, ~events)
            released = np.zeros(len(self._base) + 2, dtype=bool)
            released[slots[events < 0]] = True
            self._streams[kind] = _Stream(events, slots, (events >= 0) & ~released[slots])
        return self._streams[kind]

    def _alive(self, micro_batch: int, blas_workspace: int, rounding: int) -> int:
        """Return the most bytes alive at one time where each request takes a multiple of `rounding` bytes."""
        import numpy as np

        sizes = np.maximum(self._base + self._slope * micro_batch, 0)
        if blas_workspace:
            sizes = np.append(sizes, [blas_workspace, blas_workspace])
        return int(
            self._levels(-(-sizes // rounding) * rounding, self._events_of(blas_workspace)).max(initial=0)
        )

    def _levels(self, sizes: Numbers, events: Numbers) -> Numbers:
        import numpy as np

        # Releases index from the end, as in `Program.levels`.
        levels: Numbers = np.concatenate([sizes, -sizes[::-1]])[events].cumsum()
        return levels


def _most(deltas: Numbers) -> int:
    """Return the most that is there at one time of what comes and goes."""
    return max(0, int(deltas.cumsum().max())) if len(deltas) else 0
