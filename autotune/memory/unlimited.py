"""What a stream of requests makes the caching allocator reserve where the device never refuses.

The rules are those of `autotune.memory.allocator`. Without a limit nothing ever goes back to the device: the small and
the large pool know nothing of each other, all that was reserved stays reserved, and an expandable segment ends where it
has grown to. What is free there is the holes between blocks, and the end, which counts as large as the addresses that
are left. That is simulated here to the same byte, in less time. Everything is counted in blocks of 512 B.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from autotune.memory.allocator import LARGE_LIMIT, LARGE_ROUNDING, SMALL_LIMIT, expandable_segment_bytes
from autotune.memory.pool import LARGE_SEGMENT, SMALL_SEGMENT
from autotune.timeline.step_events import CUDA_BLOCK

ADDRESS = 32
"""Bits of an address: a hole is one number, its size above its address, so that holes order as best fit asks."""
MOST_BLOCKS = expandable_segment_bytes(None) // CUDA_BLOCK
"""Of an expandable segment, for a device without a limit."""
LARGEST = 1 << 31
"""Blocks of a request that is told apart."""
FOR_GOOD = 1 << 40
"""Added to the number of a slot that is never released: a program knows no more of it than its size."""
AT_ONCE = 1 << 41
"""Added to the number of a slot that is released right after it is allocated: a release of its own does not follow."""
KEPT = 256
"""Stretches whose outcome is remembered, of some 20 KiB each."""


class OutOfAddresses(Exception):
    """A stream asks for more than one expandable segment holds, or addresses can tell apart."""


class Segments(NamedTuple):
    """What a pool of fixed segments came to."""

    reserved: int
    sizes: list[int]
    """Of the block behind each request and each release, in order: larger than asked for where the rest was kept."""


class GrownSegment(NamedTuple):
    """An expandable segment between two stretches of a program."""

    grain: int
    """Blocks by which it grows."""
    space: int
    """Blocks that it has addresses for."""
    mapped: int = 0
    """Blocks from its start on that have memory: all that it ever took, in whole grains."""
    holes: tuple[int, ...] = ()
    """Free stretches below `top`, smallest first: `size << ADDRESS | address`."""
    top: int = 0
    """Where the last block ends. What lies behind serves what no hole can."""
    alive: tuple[int, ...] = ()
    """The slots that will be released."""
    at: tuple[int, ...] = ()
    """Where each of these lies."""
    under: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Of those that are alive more than once, the addresses before, oldest first."""


class Growths:
    """What stretches of programs made of expandable segments, the newest: rungs share most of them.

    Those that differ in the optimizer alone have the same micro-steps, and after a step often the same holes.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, GrownSegment], GrownSegment] = {}

    def after(
        self,
        before: GrownSegment,
        digest: bytes,
        stretch: Callable[[], tuple[Sequence[int], list[int], list[int]]],
    ) -> GrownSegment:
        """Return a segment after a stretch. Raises OutOfAddresses.

        `stretch` returns its events with what its slots take (see `_grow`); `digest` tells it from all others.
        """
        key = digest, before
        known = self._known.pop(key, None)
        if known is None:
            known = _grow(before, *stretch())
            while len(self._known) >= KEPT:
                self._known.pop(next(iter(self._known)))
        self._known[key] = known
        return known


def empty_segment(small: bool, space: int) -> GrownSegment:
    """Return an expandable segment of a pool with addresses for so many blocks, before its first request."""
    grain = _grain(small)
    return GrownSegment(grain, _whole(space, grain))


def mapped(highest: int, small: bool) -> int:
    """Return the blocks that an expandable segment has mapped whose top was so high at most. Raises OutOfAddresses."""
    found = _whole(highest, _grain(small))
    if found > MOST_BLOCKS:
        raise OutOfAddresses
    return found


def _grain(small: bool) -> int:
    return (SMALL_SEGMENT if small else LARGE_SEGMENT) // CUDA_BLOCK


def _whole(blocks: int, grain: int) -> int:
    return -(-blocks // grain) * grain


def _grow(before: GrownSegment, events: Sequence[int], sizes: list[int], shifted: list[int]) -> GrownSegment:
    """Return an expandable segment after requests and releases.

    `events` are as in `StepEvents`; a slot that is never released has `FOR_GOOD` added, one that is released at once
    `AT_ONCE`. Of a slot that is alive more than once the last goes first. `sizes` are in blocks, `shifted` the same by
    `ADDRESS` bits. Raises OutOfAddresses.
    """
    mask = (1 << ADDRESS) - 1
    holes = list(before.holes)
    by_start = {hole & mask: hole for hole in holes}
    by_stop = {(hole & mask) + (hole >> ADDRESS): hole for hole in holes}
    held = dict(zip(before.alive, before.at, strict=True))
    under = {slot: list(addresses) for slot, addresses in before.under}
    grain, space, top, highest = before.grain, before.space, before.top, before.mapped
    find, insert = bisect_left, insort
    for event in events:
        if event < 0:
            slot = ~event
            start = held.pop(slot)
            if under and slot in under:
                held[slot] = under[slot].pop()
                if not under[slot]:
                    del under[slot]
            stop = start + sizes[slot]
            if start in by_stop:
                hole = by_stop[start]
                del holes[find(holes, hole)], by_stop[start]
                start = hole & mask
                del by_start[start]
            if stop == top:
                top = start
                continue
            if stop in by_start:
                hole = by_start[stop]
                del holes[find(holes, hole)], by_start[stop]
                stop += hole >> ADDRESS
            hole = (stop - start << ADDRESS) + start
            by_start[start] = by_stop[stop] = hole
            insert(holes, hole)
            continue
        kept = event >= FOR_GOOD
        if kept:
            if event >= AT_ONCE:
                # Where it fits into a hole all is as before; else the end moves, and comes back.
                event -= AT_ONCE
                if not holes or holes[-1] < shifted[event]:
                    highest = max(highest, top + sizes[event])
                    if highest > space:
                        raise OutOfAddresses
                continue
            event -= FOR_GOOD
        wanted = shifted[event]
        index = find(holes, wanted)
        hole = holes[index] if index < len(holes) else 0
        # Best fit takes the end for a block of all that it can grow to: only a hole of that size is left for it.
        if (
            hole
            and hole >> ADDRESS >= space - top
            and sizes[event] <= _whole(highest, grain) - top < hole >> ADDRESS
        ):
            hole = 0
        if hole:
            del holes[index]
            start = hole & mask
            stop = start + (hole >> ADDRESS)
            del by_start[start]
            if hole - start == wanted:
                del by_stop[stop]
            else:
                rest = sizes[event]
                hole += rest - wanted
                by_start[start + rest] = by_stop[stop] = hole
                insert(holes, hole)
        else:
            start = top
            top += sizes[event]
            if top > highest:
                highest = top
                if top > space:
                    raise OutOfAddresses
        if not kept:
            if event in held:
                under.setdefault(event, []).append(held[event])
            held[event] = start
    twice = tuple((slot, tuple(rest)) for slot, rest in under.items())
    return GrownSegment(
        grain, space, _whole(highest, grain), tuple(holes), top, tuple(held), tuple(held.values()), twice
    )


def reserved_by_segments(
    events: Sequence[int], sizes: Sequence[int], small: bool, max_split_size: int | None = None
) -> Segments:
    """Return what one pool of fixed segments reserves for requests and releases.

    `events` are as in `StepEvents`, of slots whose requests are `sizes` > 0 blocks. Of a slot that is alive more than
    once the last goes first. `max_split_size` is in bytes. Raises OutOfAddresses.
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
    held: dict[int, list[tuple[int, int]]] = defaultdict(list)
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
