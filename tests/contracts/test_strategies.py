"""What every strategy must hold to, run against each of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.candidate import Candidate
from autotune.outcome import Crash, NonFinite, Ok, Timeout, Unsupported
from autotune.selection import rank
from autotune.space import Space
from autotune.specs import Goal
from autotune.strategies import climb
from autotune.strategies.decision import Done, Scope, Try
from autotune.trial import Trial
from tests.unit.simulation import Arithmetic, search
from tests.unit.test_space import DEFAULT

STRATEGIES = {"climb": climb.propose}
SPACE = Space.parse(DEFAULT, "default.yaml")


@pytest.fixture(params=STRATEGIES.values(), ids=STRATEGIES.keys())
def propose(request):
    return request.param


def make_scope(budget, exact=False, target=6400):
    return Scope(Candidate(), Goal(target=str(target), seq_len=100, headroom=0.0, exact=exact), 100, budget)


devices = st.builds(
    Arithmetic, budget=st.integers(10, 3000), weights=st.integers(1, 400), state=st.integers(1, 400),
    activations=st.integers(11, 200), checkpointed=st.integers(1, 10),
)  # fmt: skip


@given(device=devices, exact=st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_search_ends_repeats_nothing_and_stays_legal(device, exact):
    for propose in STRATEGIES.values():
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
    for propose in STRATEGIES.values():
        scope = make_scope(device.budget)
        history, _ = search(device, SPACE, scope, propose)
        assert bool(rank(history, scope)) == feasible


@given(device=devices, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_strategy_is_a_pure_function_of_history(device, data):
    for propose in STRATEGIES.values():
        scope = make_scope(device.budget)
        history, _ = search(device, SPACE, scope, propose)
        cut = data.draw(st.integers(0, len(history)))
        decision = propose(history[:cut], SPACE, scope)
        assert decision == propose(history[:cut], SPACE, scope)
        if cut < len(history):
            assert decision.candidate == history[cut].candidate
        else:
            assert isinstance(decision, Done)


def test_every_try_says_why_and_where(propose):
    history, done = search(Arithmetic(budget=700), SPACE, make_scope(700), propose)
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
def test_only_memory_verdicts_descend_the_ladder(propose, outcome):
    first = propose((), SPACE, make_scope(1000))
    assert isinstance(first, Try)
    trial = Trial(
        number=1, candidate=first.candidate, node=first.node, why=first.why, outcome=outcome, seconds=1
    )
    following = propose((trial,), SPACE, make_scope(1000))
    if isinstance(following, Try):
        assert following.candidate.checkpointing == "none"
        assert following.candidate.offload == "none"
