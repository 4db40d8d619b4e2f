"""The simulated allocator where the device never refuses: to the byte what the whole simulation says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.memory import unlimited
from autotune.memory.requests import Requests
from autotune.memory.reserved import allocator_usage
from autotune.memory.unlimited import Growths
from autotune.timeline.step_events import Accumulated, Slots, StepEvents
from autotune.timeline.timeline import Timeline
from autotune.units import GIB, MIB

SIZES = st.one_of(
    st.just(0),
    st.integers(1, 4096),
    st.integers(1, 3 * MIB),
    st.integers(8 * MIB, 40 * MIB),
    st.integers(50 * MIB, 300 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 2 * MIB, 10 * MIB, 10 * MIB - 512, 20 * MIB, 64 * MIB, 256 * MIB]),
)
SLOTS = 12


@st.composite
def streams(draw, alive):
    """Draw takes and gives of slots, any of which may be alive more than once; `alive` are so from before."""
    events, alive = [], list(alive)
    for slot, gives in draw(st.lists(st.tuples(st.integers(0, SLOTS - 1), st.booleans()), max_size=50)):
        if gives and alive:
            events.append(~alive.pop(slot % len(alive)))
        elif not gives:
            events.append(slot)
            alive.append(slot)
    return events, alive


@st.composite
def timelines(draw):
    """Draw a training whose micro-steps leave nothing, with a gradient that accumulates."""
    base, slope = (draw(st.lists(SIZES, min_size=SLOTS, max_size=SLOTS)) for _ in range(2))
    places = draw(st.lists(st.sampled_from([0, 0, 0, 1]), min_size=SLOTS, max_size=SLOTS))
    build, kept = draw(streams(()))
    forward, rest = draw(streams(()))
    backward = [~slot for slot in draw(st.permutations(rest))]
    gradient = SLOTS
    micro = StepEvents(
        [*forward, gradient, *backward], [(0, "forward"), (len(forward), "backward")],
        [Accumulated(len(forward) + 1, 0, gradient, draw(st.booleans()))],
    )  # fmt: skip
    state, _ = draw(streams(kept))
    return Timeline(
        device="cuda",
        slots=Slots([*base, 3 * MIB], [*slope, 0], [0] * (SLOTS + 1), [*places, 0], [0] * (SLOTS + 1)),
        modules=["m"], build=StepEvents(build, [(0, "build")]), micro=micro, single=micro,
        first_update=StepEvents([*state, ~gradient], [(0, "optimizer")]),
        update=StepEvents([~gradient], [(0, "optimizer")]),
    )  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    timeline=timelines(), micro_batch=st.sampled_from([1, 2, 7]), accumulating=st.booleans(),
    expandable=st.booleans(), limit=st.sampled_from([None, 64 * MIB, 256 * MIB]),
    workspace=st.sampled_from([0, 32 * MIB]),
)  # fmt: skip
def test_what_is_reserved_without_a_limit_is_what_the_whole_simulation_reserves(
    timeline, micro_batch, accumulating, expandable, limit, workspace
):
    growths = Growths()
    requests = Requests(timeline, micro_batch, accumulating, growths)
    expected = allocator_usage(
        timeline, micro_batch, accumulating, expandable, max_split_size=limit, blas_workspace=workspace
    )
    assert requests.usage(micro_batch, expandable, limit, workspace) == expected
    assert requests.allocated(micro_batch) == timeline.allocated(micro_batch, accumulating)
    peak = timeline.peak(micro_batch, accumulating, blas_workspace=workspace).bytes
    surely = requests.reserved_at_least(micro_batch, expandable, workspace)
    assert peak <= requests.allocated(micro_batch, workspace) <= surely <= expected.reserved_peak
    at_most = requests.reserved_at_most(micro_batch, expandable, workspace)
    assert expected.reserved_peak <= at_most if expandable else at_most is None
    for other in (micro_batch, 2, 3):  # with what was remembered of others
        again = Requests(timeline, other, accumulating, growths).usage(other, expandable, limit, workspace)
        assert again == allocator_usage(
            timeline, other, accumulating, expandable, max_split_size=limit, blas_workspace=workspace
        )


@settings(max_examples=300, deadline=None)
@given(
    timeline=timelines(), micro_batch=st.sampled_from([1, 2, 7]), accumulating=st.booleans(),
    filled=st.sampled_from([0.4, 0.6, 0.8, 0.95, 1.0, 1.05, 1.5]), workspace=st.sampled_from([0, 32 * MIB]),
)  # fmt: skip
def test_so_is_it_on_a_device_that_is_nearly_full(timeline, micro_batch, accumulating, filled, workspace):
    """There the end of an expandable segment is taken before a large hole."""
    ample = allocator_usage(timeline, micro_batch, accumulating, True, blas_workspace=workspace)
    memory = round(ample.reserved_peak / filled) + 1
    expected = allocator_usage(
        timeline, micro_batch, accumulating, True, device_memory=memory, blas_workspace=workspace
    )
    requests = Requests(timeline, micro_batch, accumulating, device_memory=memory)
    usage = requests.usage(micro_batch, True, blas_workspace=workspace)
    if expected.reserved_peak <= memory:
        assert usage == expected
    else:
        assert usage.reserved_peak > memory
    surely = requests.reserved_at_least(micro_batch, True, workspace)
    assert surely <= usage.reserved_peak <= requests.reserved_at_most(micro_batch, True, workspace)


def large(size):
    """A training that takes two stretches of so many bytes at one time."""
    nothing = StepEvents([], [(0, "optimizer")])
    micro = StepEvents([0, 1, ~0, ~1], [(0, "forward"), (2, "backward")])
    return Timeline(
        device="cuda", slots=Slots([size, size], [0, 0], [0, 0], [0, 0], [0, 0]), modules=["m"],
        build=StepEvents([], [(0, "build")]), micro=micro, single=micro, first_update=nothing, update=nothing,
    )  # fmt: skip


@pytest.mark.parametrize("size", [500 * GIB, 700 * GIB, 2000 * GIB])
def test_more_than_one_expandable_segment_holds_is_what_is_alive(size):
    """Both take 1,000 GiB in one segment of 1,152 GiB; what is more begins another."""
    usage = Requests(large(size + MIB), 2, False).usage(2, expandable_segments=True)
    whole = allocator_usage(large(size + MIB), 2, expandable_segments=True)
    assert (usage == whole) == (size == 500 * GIB)
    assert usage.allocated_peak == whole.allocated_peak
    assert usage.reserved_peak == (whole.reserved_peak if usage == whole else usage.allocated_peak)


@pytest.mark.parametrize(
    ("space", "end", "wanted", "reserved"),
    [
        # Behind a hole of 200 MiB are 20 MiB that stay, so the end begins at 220 MiB.
        (440, 100, 90, 420),  # it can grow to 220 MiB: the hole fits better, and what comes next finds none
        (420, 100, 90, 320),  # to 200 MiB, as large as the hole
        (420, 100, 100, 320),  # what was taken before is just enough
        (420, 90, 100, 320),  # with the rest of the last 20 MiB
        (420, 80, 100, 420),  # not enough
    ],
)
def test_a_large_hole_is_left_where_the_end_can_grow_no_further(space, end, wanted, reserved):
    sizes = [one * MIB for one in (200, 20, end, wanted, 200)]
    hole, stays, taken, first, second = range(5)
    events = [hole, stays, taken, ~hole, ~taken, first, second]
    nothing, micro = StepEvents([], [(0, "optimizer")]), StepEvents([], [(0, "forward"), (0, "backward")])
    timeline = Timeline(
        device="cuda", slots=Slots(sizes, *([0] * 5 for _ in range(4))), modules=["m"],
        build=StepEvents(events, [(0, "build")]), micro=micro, single=micro, first_update=nothing, update=nothing,
    )  # fmt: skip
    memory = (space - 5) * MIB * 8 // 9
    usage = Requests(timeline, 2, False, device_memory=memory).usage(2, expandable_segments=True)
    assert usage == allocator_usage(timeline, 2, False, True, device_memory=memory)
    assert usage.reserved_peak == reserved * MIB


def layers(count, state, temporary):
    """A training over so many layers of 30 MiB a sample, whose optimizer keeps and takes so many MiB a layer."""
    activations = list(range(count))
    gradients = [count + number for number in activations]
    states = [2 * count + number for number in activations]
    taken = [3 * count + number for number in activations]
    backward = [event for number in reversed(activations) for event in (gradients[number], ~number)]
    micro = StepEvents(
        [*activations, *backward], [(0, "forward"), (count, "backward")],
        [Accumulated(count + 2 * order + 1, number, gradients[number], False)
         for order, number in enumerate(reversed(activations))],
    )  # fmt: skip
    step = [event for slot in (taken if temporary else []) for event in (slot, ~slot)]
    freed = [~slot for slot in gradients]
    return Timeline(
        device="cuda",
        slots=Slots(
            [0] * count + [25 * MIB] * count + [state * MIB] * count + [(temporary + one) * MIB for one in activations],
            [30 * MIB] * count + [0] * (3 * count), *([0] * (4 * count) for _ in range(3)),
        ),
        modules=["m"], build=StepEvents([], [(0, "build")]), micro=micro, single=micro,
        first_update=StepEvents([*(states if state else []), *step, *freed], [(0, "optimizer")]),
        update=StepEvents([*step, *freed], [(0, "optimizer")]),
    )  # fmt: skip


def test_what_rungs_share_is_simulated_once(monkeypatch):
    """With another optimizer the micro-steps before its first step are the same, and those after it may be."""
    simulated, growths, grow = [], Growths(), unlimited._grow
    monkeypatch.setattr(unlimited, "_grow", lambda *asked: simulated.append(len(asked[1])) or grow(*asked))
    timelines = [layers(6, 50, 0), layers(6, 50, 3), layers(6, 0, 0)]
    counts = []
    for timeline in timelines:
        simulated.clear()
        usage = Requests(timeline, 4, True, growths).usage(4, expandable_segments=True)
        assert usage == allocator_usage(timeline, 4, True, True)
        counts.append(len(simulated))
    simulated.clear()
    for timeline in timelines:
        Requests(timeline, 4, True, growths).usage(4, expandable_segments=True)
    assert not simulated
    assert counts[0] == 6, "two micro-steps and an update, twice"
    assert counts[1] < counts[0]
    assert counts[2] < counts[0]


def test_what_is_remembered_has_an_end(monkeypatch):
    monkeypatch.setattr(unlimited, "KEPT", 3)
    growths = Growths()
    for micro_batch in (2, 3, 4, 2):
        usage = Requests(layers(6, 50, 3), micro_batch, True, growths).usage(micro_batch, True)
        assert usage == allocator_usage(layers(6, 50, 3), micro_batch, True, True)
    assert len(growths._known) == 3


def test_what_is_alive_beyond_all_addresses_is_what_is_reserved_at_least():
    """An address would run into the size that stands above it. No GPU has as much, and what is alive says so too."""
    nothing = StepEvents([], [(0, "optimizer")])
    taken = list(range(20))
    given_back = [~slot for slot in (*taken[::2], *taken[1::2])]
    micro = StepEvents([*taken, *given_back, *taken, *given_back], [(0, "forward"), (20, "backward")])
    timeline = Timeline(
        device="cuda", slots=Slots([1] * 20, [100 * GIB] * 20, [0] * 20, [0] * 20, [0] * 20), modules=["m"],
        build=StepEvents([], [(0, "build")]), micro=micro, single=micro, first_update=nothing, update=nothing,
    )  # fmt: skip
    for micro_batch in (2, 4, 20):
        found = Requests(timeline, micro_batch, False).usage(micro_batch, expandable_segments=True)
        whole = allocator_usage(timeline, micro_batch, False, True)
        assert found.requested_peak == whole.requested_peak
        assert found.allocated_peak == whole.allocated_peak
        assert found.allocated_peak == found.reserved_peak <= whole.reserved_peak
        assert found.reserved_peak > unlimited.MOST_BLOCKS * 512
