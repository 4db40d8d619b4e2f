"""The CUDA caching allocator, simulated: what a stream of requests makes it reserve.

The rules are those of PyTorch's `c10/cuda/CUDACachingAllocator.cpp` (2.10 and later), with its default
options and the one option that matters for training, `expandable_segments`:

- a request is rounded up to 512 B; up to 1 MiB it is served from the small pool, else from the large one;
- a free block is taken by best fit within stream and pool, the lowest address among equals, and split when
  enough remains (512 B in the small pool and in expandable segments, more than 1 MiB in the large pool);
- without one, a segment is allocated from the device: 2 MiB for the small pool, 20 MiB for requests under
  10 MiB, else the request rounded up to 2 MiB. With expandable segments, an open-ended segment of the pool
  grows by 2 MiB (small) or 20 MiB (large) at a time instead;
- the last block of such a segment counts, where the best fit is looked for, with all addresses behind it: the
  segment has addresses for 9/8 of the device's memory. So the end is kept for what no hole can serve, until more of
  it is used than is left: then large blocks go to the end though they would fit into a larger hole, and the same
  training reserves more on a device that it nearly fills;
- a freed block merges with its free neighbours;
- with a split limit (`max_split_size_mb`, for segments that are not expandable), blocks of that size or more are
  never split: they serve requests of that size or more, and of at most 20 MiB less than themselves;
- when the device refuses and there is a split limit, one such block that is as large as the request goes back to
  it, or several of the largest that are as large together, and the request is tried again;
- when the device refuses, all cached segments that are wholly free go back to it and the request is retried
  once (an "allocator retry"); only then is it out of memory.

Not covered: `roundup_power2_divisions`, `garbage_collection_threshold`, private pools
of CUDA graphs, and blocks held back by `record_stream`. Addresses only order the blocks of equal size; a real
device may hand out segments in another order.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from autotune.memory.pool import LARGE_SEGMENT, SEGMENT_STRIDE, SMALL_SEGMENT, Block, Pool
from autotune.outcome import Phase
from autotune.timeline.step_events import CUDA_BLOCK
from autotune.units import GIB, MIB

SMALL_LIMIT = MIB
"""Largest rounded request that the small pool serves (`kSmallSize`)."""
LARGE_LIMIT = 10 * MIB
"""From here on a segment is as large as its request, rounded up (`kMinLargeAlloc`)."""
LARGE_ROUNDING = 2 * MIB
"""What such a request is rounded up to (`kRoundLarge`)."""


def expandable_segment_bytes(device_memory: int | None) -> int:
    """Return the bytes for which an expandable segment reserves addresses: 9/8 of the device's memory.

    Where none is given, of a terabyte, which no GPU has.
    """
    memory = 1024 * GIB if device_memory is None else device_memory
    return memory + memory // 8


class OutOfDeviceMemory(Exception):
    """The simulated device refused a request, also after all cached segments were given back."""

    def __init__(self, requested: int, allocated: int, reserved: int, capacity: int) -> None:
        self.requested = requested
        """Bytes of the refused request."""
        self.allocated = allocated
        self.reserved = reserved
        self.capacity = capacity
        self.phase: Phase | None = None
        """Where in a training that was, once whoever composed the requests has said so."""
        super().__init__(
            f"request of {requested} B refused: {reserved} of {capacity} B reserved, {allocated} B allocated"
        )


@dataclass(frozen=True)
class AllocatorUsage:
    """Peaks of a simulated allocator, in bytes."""

    requested_peak: int
    """Most bytes that tensors asked for at one time."""
    allocated_peak: int
    """Most bytes in blocks that were in use: `torch.cuda.max_memory_allocated()`."""
    reserved_peak: int
    """Most bytes in segments: `torch.cuda.max_memory_reserved()`."""
    retries: int
    """Times that the cache was flushed to satisfy a request: `num_alloc_retries`."""


class Span(NamedTuple):
    """A stretch of simulated memory, as `CachingAllocator.layout` lists it."""

    address: int
    size: int
    state: str
    """`used`, `free` (cached) or `unmapped` (address space of an expandable segment without memory)."""


class CachingAllocator:
    """One device's caching allocator. Handles are opaque; sizes are in bytes.

    `capacity` is what the allocator may reserve: the device's memory less what lies outside of it (context,
    communication buffers). None never refuses. `device_memory` is all of the device's, by which expandable segments
    reserve addresses.
    """

    def __init__(
        self,
        capacity: int | None = None,
        expandable_segments: bool = False,
        max_split_size: int | None = None,
        device_memory: int | None = None,
    ) -> None:
        self.capacity = capacity
        self._addresses = expandable_segment_bytes(device_memory or capacity)
        self.expandable = expandable_segments
        self.max_split_size = None if expandable_segments else max_split_size
        """Bytes from which on a block is not split."""
        self.requested = self.allocated = self.reserved = 0
        self.requested_peak = self.allocated_peak = self.reserved_peak = 0
        self.retries = 0
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._next_address = SEGMENT_STRIDE

    def allocate(self, size: int, stream: int = 0) -> Block:
        """Take `size` > 0 bytes and return a handle for `release`. Raises OutOfDeviceMemory."""
        rounded = -(-size // CUDA_BLOCK) * CUDA_BLOCK
        key = (stream, rounded <= SMALL_LIMIT)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(key[1])
        block = (
            self._from_cache(pool, rounded)
            or self._from_device(pool, rounded)
            or self._after_giving_back(pool, rounded)
            or self._after_flush(pool, rounded)
        )
        if block is None:
            raise OutOfDeviceMemory(size, self.allocated, self.reserved, self.capacity or 0)
        remaining = block.size - rounded
        if self.expandable or pool.small:
            split = remaining >= CUDA_BLOCK
        else:
            split = remaining > SMALL_LIMIT and (self.max_split_size is None or rounded < self.max_split_size)
        if split:
            pool.add(block.cut(rounded))
        block.used = True
        block.requested = size
        self.requested += size
        self.allocated += block.size
        if self.requested > self.requested_peak:
            self.requested_peak = self.requested
        if self.allocated > self.allocated_peak:
            self.allocated_peak = self.allocated
        return block

    def release(self, block: Block) -> None:
        """Give back a block that `allocate` returned; it merges with free neighbours and stays cached."""
        assert block.used, "released twice"
        block.used = False
        self.requested -= block.requested
        self.allocated -= block.size
        block.pool.merge(block)

    def flush(self) -> None:
        """Return all cached memory to the device that can be returned (`torch.cuda.empty_cache`)."""
        for pool in self._pools.values():
            for _, _, block in list(pool.free):
                if self.expandable:
                    self.reserved -= pool.unmap(block)
                elif block.whole_segment:
                    self._give_back(block, pool)

    def usage(self) -> AllocatorUsage:
        """Return the peaks so far."""
        return AllocatorUsage(self.requested_peak, self.allocated_peak, self.reserved_peak, self.retries)

    def layout(self) -> list[Span]:
        """Return every stretch of every segment, by address."""
        spans: list[Span] = []
        for pool in self._pools.values():
            for first in pool.segments:
                block: Block | None = first
                while block is not None:
                    state = "used" if block.used else "free" if block.mapped else "unmapped"
                    spans.append(Span(block.address, block.size, state))
                    block = block.next
        return sorted(spans)

    def _from_cache(self, pool: Pool, size: int) -> Block | None:
        free = pool.free
        index = bisect_left(free, (size,))
        if index == len(free):
            return None
        if self.expandable:
            # The last block of an expandable segment counts as large as it can grow, so that it is kept for
            # requests that need it and a later, really smaller block is taken instead.
            while index + 1 < len(free) and free[index + 1][2].reach < free[index][2].reach:
                index += 1
        elif self.max_split_size is not None:
            found = free[index][0]
            if size < self.max_split_size <= found or (
                size >= self.max_split_size and found >= size + LARGE_SEGMENT
            ):
                return None
        return free.pop(index)[2]

    def _from_device(self, pool: Pool, size: int) -> Block | None:
        if self.expandable:
            return self._grow(pool, size)
        if pool.small:
            segment = SMALL_SEGMENT
        elif size < LARGE_LIMIT:
            segment = LARGE_SEGMENT
        else:
            segment = -(-size // LARGE_ROUNDING) * LARGE_ROUNDING
        if not self._take(segment):
            return None
        return self._segment(pool, segment, mapped=True)

    def _after_giving_back(self, pool: Pool, size: int) -> Block | None:
        """Return oversize blocks to the device, as many as the request needs, and try it again."""
        if self.max_split_size is None:
            return None
        wanted = max(size, self.max_split_size)
        index = bisect_left(pool.free, (wanted,))
        if index < len(pool.free):
            self._give_back(pool.free[index][2], pool)
        else:
            oversize = [block for held, _, block in reversed(pool.free) if held >= self.max_split_size]
            given = 0
            for block in oversize:
                if given >= wanted:
                    break
                given += block.size
                self._give_back(block, pool)
            if given < wanted:
                return None
        return self._from_device(pool, size)

    def _give_back(self, block: Block, pool: Pool) -> None:
        pool.drop(block)
        self.reserved -= block.size

    def _after_flush(self, pool: Pool, size: int) -> Block | None:
        self.retries += 1
        self.flush()
        return self._from_device(pool, size)

    def _take(self, size: int) -> bool:
        if self.capacity is not None and self.reserved + size > self.capacity:
            return False
        self.reserved += size
        if self.reserved > self.reserved_peak:
            self.reserved_peak = self.reserved
        return True

    def _segment(self, pool: Pool, size: int, mapped: bool) -> Block:
        block = Block(pool, self._next_address, size, mapped)
        self._next_address += SEGMENT_STRIDE
        pool.segments.append(block)
        return block

    # Expandable segments: address space first, memory as needed.

    def _grow(self, pool: Pool, size: int) -> Block | None:
        block = pool.with_room(size) or self._space(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size), pool):
            return None
        while block.size < size:
            following = block.next
            assert following is not None, "the address space ended"
            if not self._map(following, min(size - block.size, following.size), pool):
                return None
            block = following  # it has merged with the block before it
        pool.remove(block)
        return block

    def _space(self, pool: Pool, size: int) -> Block:
        """Return the first block of a new segment's address space, of at least `size` bytes."""
        wanted = max(self._addresses, size)
        space = self._segment(pool, -(-wanted // pool.granularity) * pool.granularity, mapped=False)
        pool.add(space)
        return space

    def _map(self, block: Block, size: int, pool: Pool) -> bool:
        """Back the start of an unmapped block with memory, in whole handles; False if the device refuses."""
        mapped = min(-(-size // pool.granularity) * pool.granularity, block.size)
        if not self._take(mapped):
            return False
        pool.map(block, mapped)
        return True
