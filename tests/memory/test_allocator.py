"""The simulated caching allocator: its rules one by one, and what must hold for any stream of requests."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.memory.allocator import CachingAllocator, OutOfDeviceMemory
from autotune.units import MIB


def test_a_request_is_rounded_to_512_bytes_in_a_segment_of_2_mib():
    allocator = CachingAllocator()
    allocator.allocate(1)
    assert (allocator.allocated, allocator.reserved) == (512, 2 * MIB)
    allocator.allocate(513)
    assert (allocator.allocated, allocator.reserved) == (512 + 1024, 2 * MIB)


@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_segments_follow_the_size_of_the_request(size, reserved):
    allocator = CachingAllocator()
    allocator.allocate(size)
    assert allocator.reserved == reserved


def test_the_large_pool_keeps_a_remainder_of_up_to_1_mib_in_the_block():
    allocator = CachingAllocator()
    allocator.allocate(11 * MIB)  # a segment of 12 MiB, whose rest is not worth a block
    assert allocator.allocated == 12 * MIB
    expandable = CachingAllocator(expandable_segments=True)
    expandable.allocate(11 * MIB)
    assert (expandable.allocated, expandable.reserved) == (11 * MIB, 20 * MIB)


def test_best_fit_takes_the_smallest_block_and_then_the_lowest_address():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size * MIB) for size in (30, 20, 20, 40)]
    for block in blocks:
        allocator.release(block)
    assert allocator.allocate(16 * MIB).address == blocks[1].address
    assert allocator.allocate(18 * MIB).address == blocks[2].address
    assert allocator.allocate(18 * MIB).address == blocks[0].address
    assert allocator.reserved == 110 * MIB


def test_neighbours_merge_and_serve_a_larger_request():
    allocator = CachingAllocator()
    first, second, third = (allocator.allocate(5 * MIB) for _ in range(3))
    allocator.release(first)
    allocator.release(third)  # joins the 5 MiB at the end of the segment
    allocator.release(second)  # joins both
    assert allocator.allocate(20 * MIB - 512).address == first.address
    assert allocator.reserved == 20 * MIB


def test_streams_do_not_share_blocks():
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(16 * MIB, stream=1))
    allocator.allocate(16 * MIB, stream=2)
    assert allocator.reserved == 32 * MIB


def test_fragmented_memory_is_flushed_and_the_request_retried_before_it_is_refused():
    allocator = CachingAllocator(capacity=100 * MIB)
    allocator.release(allocator.allocate(60 * MIB))
    allocator.allocate(70 * MIB)
    assert (allocator.reserved, allocator.retries) == (70 * MIB, 1)
    with pytest.raises(OutOfDeviceMemory) as refused:
        allocator.allocate(40 * MIB)
    assert refused.value.requested == 40 * MIB
    assert refused.value.allocated == 70 * MIB


def test_expandable_segments_do_not_fragment_where_fixed_ones_do():
    sizes = [size * MIB for size in range(12, 60, 4)]  # each release leaves a hole too small for the next
    fixed, expandable = CachingAllocator(), CachingAllocator(expandable_segments=True)
    for allocator, size in itertools.product((fixed, expandable), sizes):
        allocator.release(allocator.allocate(size))
    assert fixed.usage().reserved_peak == sum(sizes)
    assert expandable.usage().reserved_peak == 60 * MIB  # the largest, in 20 MiB handles


def test_expandable_memory_between_used_blocks_goes_back_to_the_device_in_whole_handles():
    allocator = CachingAllocator(capacity=200 * MIB, expandable_segments=True)
    hole = allocator.allocate(70 * MIB)
    kept = allocator.allocate(30 * MIB)
    allocator.release(hole)
    allocator.flush()
    assert allocator.reserved == 40 * MIB  # the handles under the 30 MiB, from 60 to 100
    allocator.allocate(160 * MIB)  # fits only because the hole was given back
    allocator.release(kept)
    assert allocator.allocated == 160 * MIB


def test_an_expandable_segment_reuses_the_address_space_of_a_hole():
    allocator = CachingAllocator(expandable_segments=True)
    hole = allocator.allocate(40 * MIB)
    allocator.allocate(40 * MIB)
    allocator.release(hole)
    allocator.flush()
    assert allocator.allocate(30 * MIB).address == hole.address
    assert allocator.reserved == 80 * MIB


SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 3 * MIB),
    st.integers(8 * MIB, 40 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), SIZES, st.integers(0, 1)),
        st.tuples(st.just("give"), st.integers(0, 99), st.just(0)),
    ),
    max_size=60,
)


def run(steps, capacity, expandable):
    """Apply the steps, checking the invariants after each; return the allocator and what it refused."""
    allocator = CachingAllocator(capacity, expandable)
    live, refused = [], 0
    for action, number, stream in steps:
        if action == "take":
            try:
                live.append((allocator.allocate(number, stream), number))
            except OutOfDeviceMemory:
                refused += 1
        elif live:
            allocator.release(live.pop(number % len(live))[0])
        check(allocator, live)
    return allocator, live, refused


def check(allocator, live):
    spans = allocator.layout()
    for before, after in itertools.pairwise(spans):
        assert before.address + before.size <= after.address, "two blocks overlap"
    used = {span.address: span.size for span in spans if span.state == "used"}
    assert used == {block.address: block.size for block, _ in live}
    assert all(block.size >= size and block.size % 512 == 0 for block, size in live)
    assert allocator.allocated == sum(used.values())
    assert allocator.requested == sum(size for _, size in live)
    assert allocator.reserved == sum(span.size for span in spans if span.state != "unmapped")
    assert allocator.requested <= allocator.allocated <= allocator.reserved
    assert allocator.capacity is None or allocator.reserved <= allocator.capacity
    free = [span for span in spans if span.state == "free"]
    listed = sorted(entry[1] for pool in allocator._pools.values() for entry in pool.free)
    assert listed == [span.address for span in free]


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, capacity=st.sampled_from([None, 64 * MIB, 200 * MIB]), expandable=st.booleans())
def test_blocks_never_overlap_and_every_byte_is_accounted_for(steps, capacity, expandable):
    allocator, live, _ = run(steps, capacity, expandable)
    for block, _size in live:
        allocator.release(block)
    assert (allocator.allocated, allocator.requested) == (0, 0)
    allocator.flush()
    assert allocator.reserved == 0, "memory that nobody holds stays reserved after a flush"


@settings(max_examples=30, deadline=None)
@given(steps=STEPS, expandable=st.booleans())
def test_equal_streams_give_equal_memory(steps, expandable):
    first, second = (run(steps, 200 * MIB, expandable) for _ in range(2))
    assert first[0].layout() == second[0].layout()
    assert first[0].usage() == second[0].usage()
    assert first[2] == second[2]


@settings(max_examples=50, deadline=None)
@given(steps=STEPS, expandable=st.booleans())
def test_what_was_reserved_without_a_limit_fits_within_it(steps, expandable):
    unlimited, _, _ = run(steps, None, expandable)
    limited, _, refused = run(steps, unlimited.reserved_peak or 1, expandable)
    assert refused == 0
    assert limited.usage() == unlimited.usage()


def test_a_block_from_the_split_limit_on_is_whole_or_not_used():
    allocator = CachingAllocator(max_split_size=64 * MIB)
    large = allocator.allocate(100 * MIB)
    allocator.release(large)
    allocator.allocate(30 * MIB)  # would be cut from the block of 100 MiB
    assert allocator.reserved == 130 * MIB
    allocator.allocate(79 * MIB)  # too much would be lost
    assert allocator.reserved == 209 * MIB + MIB  # rounded up to 2 MiB
    taken = allocator.allocate(81 * MIB)
    assert (taken.size, allocator.reserved) == (100 * MIB, 210 * MIB)
    plain = CachingAllocator()
    plain.release(plain.allocate(100 * MIB))
    plain.allocate(30 * MIB)
    assert plain.reserved == 100 * MIB


def test_oversize_blocks_go_back_to_the_device_before_all_others():
    allocator = CachingAllocator(capacity=300 * MIB, max_split_size=64 * MIB)
    held = [allocator.allocate(size * MIB) for size in (20, 70, 80, 90)]
    for block in held:
        allocator.release(block)
    allocator.allocate(150 * MIB)  # the two largest make room for it; the others stay cached
    assert (allocator.reserved, allocator.retries) == ((20 + 70 + 150) * MIB, 0)
    expandable = CachingAllocator(expandable_segments=True, max_split_size=64 * MIB)
    assert expandable.max_split_size is None
