"""The blocks of a caching allocator, and the pools that list the free ones: how they split, merge and grow."""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter

from autotune.units import MIB

SMALL_SEGMENT = 2 * MIB
"""Segment of the small pool (`kSmallBuffer`)."""
LARGE_SEGMENT = 20 * MIB
"""Segment for requests from 1 to 10 MiB, and the growth of an expandable large segment (`kLargeBuffer`)."""
SEGMENT_STRIDE = 1 << 50
"""Distance between the first addresses of two segments; only has to be larger than any segment."""


class Block:
    """A stretch of a segment: in use, cached, or (in an expandable segment) address space without memory."""

    __slots__ = ("address", "mapped", "next", "pool", "previous", "requested", "size", "used")

    def __init__(self, pool: Pool, address: int, size: int, mapped: bool) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.mapped = mapped
        self.used = False
        self.requested = 0
        self.previous: Block | None = None
        self.next: Block | None = None

    @property
    def whole_segment(self) -> bool:
        """Whether nothing else lies in its segment."""
        return self.previous is None and self.next is None

    @property
    def reach(self) -> int:
        """The size that a free block can grow to."""
        following = self.next
        return self.size + following.size if following is not None and not following.mapped else self.size

    def cut(self, size: int) -> Block:
        """Shorten to `size` bytes and return the rest as a block behind it, in no list yet."""
        rest = Block(self.pool, self.address + size, self.size - size, self.mapped)
        rest.previous, rest.next = self, self.next
        if rest.next is not None:
            rest.next.previous = rest
        self.next = rest
        self.size = size
        return rest


class Pool:
    """Blocks of one stream and size class: free ones by size and then address, unmapped ones by address."""

    __slots__ = ("free", "granularity", "segments", "small", "unmapped")

    def __init__(self, small: bool) -> None:
        self.small = small
        self.granularity = SMALL_SEGMENT if small else LARGE_SEGMENT
        """Bytes by which an expandable segment grows."""
        self.free: list[tuple[int, int, Block]] = []
        self.unmapped: list[Block] = []
        self.segments: list[Block] = []
        """First block of every segment, whether in use or not."""

    def add(self, block: Block) -> None:
        """List an unused block."""
        if block.mapped:
            insort(self.free, (block.size, block.address, block))
        else:
            insort(self.unmapped, block, key=_address)

    def remove(self, block: Block) -> None:
        """Strike an unused block off its list."""
        if block.mapped:
            del self.free[bisect_left(self.free, (block.size, block.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, block.address, key=_address)]

    def drop(self, block: Block) -> None:
        """Forget a free block that is a whole segment."""
        self.remove(block)
        self.segments.remove(block)

    def merge(self, block: Block) -> None:
        """Merge a block that is in no list with its unused neighbours of the same kind (mapped or not), and list it."""
        previous, following = block.previous, block.next
        if previous is not None and not previous.used and previous.mapped == block.mapped:
            self.remove(previous)
            if previous.previous is None:
                self.segments[self.segments.index(previous)] = block
            block.address = previous.address
            block.size += previous.size
            block.previous = previous.previous
            if block.previous is not None:
                block.previous.next = block
        if following is not None and not following.used and following.mapped == block.mapped:
            self.remove(following)
            block.size += following.size
            block.next = following.next
            if block.next is not None:
                block.next.previous = block
        self.add(block)

    def with_room(self, size: int) -> Block | None:
        """Return the first unused block from which `size` bytes of address space are unused, if there is one."""
        for unmapped in self.unmapped:
            first = unmapped
            if first.previous is not None and not first.previous.used:
                first = first.previous
            room, block = 0, first
            while room < size and not block.used:
                room += block.size
                if block.next is None:
                    break
                block = block.next
            if room >= size:
                return first
        return None

    def map(self, block: Block, size: int) -> None:
        """Back the first `size` bytes of an unmapped block with memory."""
        self.remove(block)
        if size < block.size:
            self.add(block.cut(size))
        block.mapped = True
        self.merge(block)

    def unmap(self, block: Block) -> int:
        """Take the memory from the whole handles inside a free block, and return their bytes; the ragged ends stay."""
        grain = self.granularity
        origin = block.address // SEGMENT_STRIDE * SEGMENT_STRIDE
        start = -(-(block.address - origin) // grain) * grain + origin
        end = (block.address + block.size - origin) // grain * grain + origin
        if start >= end:
            return 0
        self.remove(block)
        if start > block.address:
            head, block = block, block.cut(start - block.address)
            self.add(head)
        if end < block.address + block.size:
            self.add(block.cut(end - block.address))
        block.mapped = False
        given = block.size
        self.merge(block)
        return given


_address = attrgetter("address")
