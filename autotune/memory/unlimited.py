"""What a stream of requests makes the caching allocator reserve where the device never refuses.

The rules are those of `autotune.memory.allocator`. Without a limit nothing ever goes back to the device: the small and
the large pool know nothing of each other, all that was reserved stays reserved, and an expandable segment ends where it
has grown to. What is free there is the holes between blocks, and the end. That is simulated here to the same byte, in
less time. Everything is counted in blocks of 512 B.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

from autotune.memory.allocator import LARGE_LIMIT, LARGE_ROUNDING, SMALL_LIMIT
from autotune.memory.pool import LARGE_SEGMENT, SMALL_SEGMENT
from autotune.timeline.step_events import CUDA_BLOCK
from autotune.units import GIB

ADDRESS = 40
"""Bits of an address: a hole is one number, its size above its address, so that holes order as best fit asks."""
ADDRESS_SPACE = (1024 + 128) * GIB // CUDA_BLOCK
"""Of an expandable segment, for a device without a limit (`CachingAllocator._space`)."""


class OutOfAddresses(Exception):
    """A stream asks for more than one expandable segment holds, or addresses can tell apart."""


class Segments(NamedTuple):
    """What a pool of fixed segments came to."""

    reserved: int
    sizes: list[int]
    """Of the block behind each request and each release, in order: larger than asked for where the rest was kept."""


def reserved_by_growing(events: Sequence[int], sizes: Sequence[int], small: bool) -> int:
    """Return what one pool of expandable segments reserves for requests and releases.

    `events` are as in `StepEvents`, of slots whose requests are `sizes` > 0; of a slot that is alive more than once the
    last goes first. Raises OutOfAddresses.
    """
    grain = (SMALL_SEGMENT if small else LARGE_SEGMENT) // CUDA_BLOCK
    mask = (1 << ADDRESS) - 1
    holes: list[int] = []  # but for the end of the segment, which serves what no hole can
    stops: dict[int, int] = {}  # of each hole by its start, and the other way round
    starts: dict[int, int] = {}
    held: list[list[int]] = [[] for _ in sizes]
    top = mapped = 0
    for event in events:
        if event >= 0:
            size = sizes[event]
            index = bisect_left(holes, size << ADDRESS)
            if index < len(holes):
                start = holes.pop(index) & mask
                stop = stops.pop(start)
                rest = start + size
                if rest < stop:
                    stops[rest] = stop
                    starts[stop] = rest
                    insort(holes, stop - rest << ADDRESS | rest)
                else:
                    del starts[stop]
            else:
                start = top
                top += size
                if top > mapped:
                    mapped -= (mapped - top) // grain * grain
            held[event].append(start)
        else:
            start = held[~event].pop()
            stop = start + sizes[~event]
            if start in starts:
                before = starts.pop(start)
                del stops[before]
                del holes[bisect_left(holes, start - before << ADDRESS | before)]
                start = before
            if stop == top:
                top = start
                continue
            if stop in stops:
                after = stops.pop(stop)
                del holes[bisect_left(holes, after - stop << ADDRESS | stop)]
                stop = after
            stops[start] = stop
            starts[stop] = start
            insort(holes, stop - start << ADDRESS | start)
    if mapped > ADDRESS_SPACE:
        raise OutOfAddresses
    return mapped


def reserved_by_segments(
    events: Sequence[int], sizes: Sequence[int], small: bool, max_split_size: int | None = None
) -> Segments:
    """Return what one pool of fixed segments reserves; `events` and `sizes` as in `reserved_by_growing`.

    `max_split_size` is in bytes. Raises OutOfAddresses.
    """
    segment = (SMALL_SEGMENT if small else LARGE_SEGMENT) // CUDA_BLOCK
    own, grain = LARGE_LIMIT // CUDA_BLOCK, LARGE_ROUNDING // CUDA_BLOCK
    kept = 0 if small else SMALL_LIMIT // CUDA_BLOCK  # a rest of at most so much stays with its block
    mask = (1 << ADDRESS) - 1
    unsplit = mask if max_split_size is None else -(-max_split_size // CUDA_BLOCK)
    most_beyond = LARGE_SEGMENT // CUDA_BLOCK
    holes: list[int] = []
    stops: dict[int, int] = {}
    starts: dict[int, int] = {}
    held: list[list[tuple[int, int]]] = [[] for _ in sizes]
    taken: list[int] = []
    reserved = address = 0
    for event in events:
        if event >= 0:
            size = sizes[event]
            index = bisect_left(holes, size << ADDRESS)
            found = index < len(holes)
            if found and unsplit < mask:
                hole = holes[index] >> ADDRESS
                found = not (size < unsplit <= hole or (size >= unsplit and hole >= size + most_beyond))
            if found:
                start = holes.pop(index) & mask
                stop = stops.pop(start)
                del starts[stop]
            else:
                grown = segment if small or size < own else -(-size // grain) * grain
                start, stop = address, address + grown
                address = stop + 1  # a gap, over which nothing merges
                reserved += grown
            rest = start + size
            if stop - rest > kept and size < unsplit:
                stops[rest] = stop
                starts[stop] = rest
                insort(holes, stop - rest << ADDRESS | rest)
                stop = rest
            held[event].append((start, stop))
            taken.append(stop - start)
        else:
            start, stop = held[~event].pop()
            taken.append(stop - start)
            if start in starts:
                before = starts.pop(start)
                del stops[before]
                del holes[bisect_left(holes, start - before << ADDRESS | before)]
                start = before
            if stop in stops:
                after = stops.pop(stop)
                del holes[bisect_left(holes, after - stop << ADDRESS | stop)]
                stop = after
            stops[start] = stop
            starts[stop] = start
            insort(holes, stop - start << ADDRESS | start)
    if address > mask:
        raise OutOfAddresses
    return Segments(reserved, taken)
