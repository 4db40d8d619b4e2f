"""The simulated allocator where the device never refuses: to the byte what the whole simulation says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.memory import requests as module
from autotune.memory.requests import Requests
from autotune.memory.reserved import allocator_usage
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
    requests = Requests(timeline, micro_batch, accumulating)
    expected = allocator_usage(
        timeline, micro_batch, accumulating, expandable, max_split_size=limit, blas_workspace=workspace
    )
    assert requests.usage(micro_batch, expandable, limit, workspace) == expected
    assert requests.allocated(micro_batch) == timeline.allocated(micro_batch, accumulating)


def large(size):
    """A training that takes two stretches of so many bytes at one time."""
    nothing = StepEvents([], [(0, "optimizer")])
    micro = StepEvents([0, 1, ~0, ~1], [(0, "forward"), (2, "backward")])
    return Timeline(
        device="cuda", slots=Slots([size, size], [0, 0], [0, 0], [0, 0], [0, 0]), modules=["m"],
        build=StepEvents([], [(0, "build")]), micro=micro, single=micro, first_update=nothing, update=nothing,
    )  # fmt: skip


@pytest.mark.parametrize("size", [500 * GIB, 700 * GIB, 2000 * GIB])
def test_more_than_one_expandable_segment_holds_is_simulated_as_a_whole(size, monkeypatch):
    """Both take 1,000 GiB in one segment of 1,152 GiB; what is more begins another."""
    whole, simulated = [], module.simulated
    monkeypatch.setattr(module, "simulated", lambda *asked: whole.append(asked) or simulated(*asked))
    usage = Requests(large(size), 2, False).usage(2, expandable_segments=True)
    assert usage == allocator_usage(large(size), 2, expandable_segments=True)
    assert bool(whole) == (size > 500 * GIB)
