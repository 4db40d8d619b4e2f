"""What every strategy must hold to, run against each of them."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.candidate import Candidate
from autotune.outcome import Crash, NonFinite, Ok, Timeout, Unsupported
from autotune.search import graph_walk
from autotune.search.selection import rank
from autotune.search.space import Space
from autotune.search.strategy import Done, Scope, Try
from autotune.specs import Goal
from autotune.trial import Trial
from autotune.units import MIB
from tests.fakes.simulation import Arithmetic, foreseeing, search
from tests.search.test_space import DEFAULT

SPACE = Space.parse(DEFAULT, "default.yaml")


def climb_blindly(_device):
    return graph_walk.propose


def climb_foreseeing(device):
    return partial(graph_walk.propose, predictor=foreseeing(device))


def climb_deceived(device):
    """The memory model says half of what is true: everything seems to fit."""
    return partial(graph_walk.propose, predictor=foreseeing(device, factor=0.5))


def climb_scared(device):
    """The memory model says three times what is true: little seems to fit."""
    return partial(graph_walk.propose, predictor=foreseeing(device, factor=3.0))


STRATEGIES = (climb_blindly, climb_foreseeing, climb_deceived, climb_scared)
"""Makers of a strategy for a device."""


@pytest.fixture(params=STRATEGIES, ids=lambda make: make.__name__)
def make(request):
    return request.param


def make_scope(budget, exact=False, target=6400):
    return Scope(Candidate(), Goal(target=str(target), seq_len=100, headroom=0.0, exact=exact), 100, budget)


devices = st.builds(
    Arithmetic, budget=st.integers(10, 3000), weights=st.integers(1, 400), state=st.integers(1, 400),
    activations=st.integers(11, 200), checkpointed=st.integers(1, 10),
).map(lambda device: device.in_units(16 * MIB))  # fmt: skip


@given(device=devices, exact=st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_search_ends_repeats_nothing_and_stays_legal(device, exact):
    for make in STRATEGIES:
        propose = make(device)
        scope = make_scope(device.budget, exact)
        history, _ = search(device, SPACE, scope, propose)
        assert len({trial.candidate for trial in history}) == len(history)
        assert all(SPACE.refusal(trial.candidate) is None for trial in history)
        assert all(1 <= trial.candidate.micro_batch <= scope.limit for trial in history)
        if exact:
            assert all(scope.allows(trial.candidate.micro_batch) for trial in history)


@given(device=devices)
@settings(max_examples=150, deadline=None)
def test_if_any_rung_fits_the_search_finds_one(device):
    feasible = any(
        isinstance(device.outcome(Candidate(checkpointing=c, offload=o)), Ok)
        for c, o in [
            ("none", "none"),
            ("full", "none"),
            ("none", "optimizer"),
            ("full", "optimizer"),
            ("full", "full"),
        ]
    )
    for make in STRATEGIES:
        propose = make(device)
        scope = make_scope(device.budget)
        history, _ = search(device, SPACE, scope, propose)
        assert bool(rank(history, scope)) == feasible


@given(device=devices, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_strategy_is_a_pure_function_of_history(device, data):
    for make in STRATEGIES:
        propose = make(device)
        scope = make_scope(device.budget)
        history, _ = search(device, SPACE, scope, propose)
        cut = data.draw(st.integers(0, len(history)))
        decision = propose(history[:cut], SPACE, scope)
        assert decision == propose(history[:cut], SPACE, scope)
        if cut < len(history):
            assert decision.candidate == history[cut].candidate
        else:
            assert isinstance(decision, Done)


def test_every_try_says_why_and_where(make):
    device = Arithmetic(budget=700).in_units(16 * MIB)
    history, done = search(device, SPACE, make_scope(device.budget), make(device))
    assert all(trial.why and trial.node in SPACE.graph.nodes for trial in history)
    assert done.path


@pytest.mark.parametrize(
    "outcome",
    [
        NonFinite(phase="forward", step=1, what="loss"), Timeout(phase="forward", seconds=1.0),
        Unsupported(reason="no bf16"), Crash(reason="signal", phase="forward", message="SIGSEGV"),
    ],
    ids=lambda outcome: outcome.kind,
)  # fmt: skip
def test_only_memory_verdicts_descend_the_ladder(make, outcome):
    device = Arithmetic(budget=5000).in_units(16 * MIB)  # fits even at three times what is true
    propose, scope = make(device), make_scope(device.budget)
    first = propose((), SPACE, scope)
    assert isinstance(first, Try)
    trial = Trial(
        number=1, candidate=first.candidate, node=first.node, why=first.why, outcome=outcome, seconds=1
    )
    following = propose((trial,), SPACE, scope)
    if isinstance(following, Try):
        assert following.candidate.checkpointing == "none"
        assert following.candidate.offload == "none"
