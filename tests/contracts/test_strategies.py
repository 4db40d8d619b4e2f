"""What every strategy must keep, run against each of them; and the walk of the graph on any device."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.candidate import Candidate
from autotune.outcome import Crash, NonFinite, Ok, Timeout, Unsupported
from autotune.search.context import SearchContext
from autotune.search.graph_walk import GraphWalk
from autotune.search.grid import Grid
from autotune.search.guided import Guided
from autotune.search.optuna_search import OptunaSearch
from autotune.search.random_search import RandomSearch
from autotune.search.selection import rank
from autotune.search.space import Space
from autotune.search.strategies import STRATEGIES
from autotune.search.strategy import Done, Try
from autotune.specs import Goal
from autotune.testing.arithmetic import Arithmetic, foreseeing, search
from autotune.testing.strategies import StrategyContract
from autotune.trial import Trial
from autotune.units import MIB
from tests.search.test_space import BASIC

SPACE = Space.parse(BASIC, "default.yaml")


class Blind(GraphWalk):
    """The walk without a memory model."""

    def predictor(self, device):
        return None


class Foreseeing(GraphWalk):
    """The walk with a memory model whose every number of bytes is off by a factor."""

    def __init__(self, factor):
        self.factor = factor

    def predictor(self, device):
        return foreseeing(device, self.factor)


class TestGuided(StrategyContract):
    SPACES = ("minimal", "default")
    BUDGETS = (5, 440, 1000)
    FACTORS = (None, 1.0, 3.0)

    def make_strategy(self):
        return Guided()


class TestGraph(StrategyContract):
    def make_strategy(self):
        return GraphWalk()


class TestOptuna(StrategyContract):
    BUDGETS = (5, 440, 1000)
    FACTORS = (None, 1.0)

    def make_strategy(self):
        return OptunaSearch()


class TestGrid(StrategyContract):
    FACTORS = (None, 3.0)  # it does not ask the memory model

    def make_strategy(self):
        return Grid()


class TestRandom(StrategyContract):
    FACTORS = (None, 3.0)

    def make_strategy(self):
        return RandomSearch()


def test_every_strategy_that_can_be_named_is_run_through_the_contract():
    made = {suite().make_strategy().name for suite in StrategyContract.__subclasses__()}
    assert set(STRATEGIES) <= made


class Clocked(GraphWalk):
    def propose(self, history, context):
        assert time.time() > 0
        return super().propose(history, context)


class Forgetful(Grid):
    """Keeps count between calls."""

    def __init__(self):
        self.calls = 0

    def propose(self, history, context):
        self.calls += 1
        decision = super().propose(history, context)
        return replace(decision, why=f"call {self.calls}")


class Stubborn(GraphWalk):
    """Proposes its first candidate for ever."""

    def propose(self, history, context):
        return super().propose((), context)


@pytest.mark.parametrize(
    ("strategy", "test"),
    [
        (Clocked, "test_it_is_a_pure_function_of_history_and_context"),
        (Forgetful, "test_it_is_a_pure_function_of_history_and_context"),
        (Forgetful, "test_any_part_of_a_journal_leads_to_what_came_next"),
        (Stubborn, "test_a_search_ends_and_tries_nothing_twice"),
    ],
)
def test_the_contract_finds_what_breaks_it(strategy, test):
    suite = type("Broken", (StrategyContract,), {"make_strategy": lambda self: strategy(), "MOST": 50})
    with pytest.raises(AssertionError):
        getattr(suite(), test)()


WALKS = (Blind(), Foreseeing(1.0), Foreseeing(0.5), Foreseeing(3.0))


@pytest.fixture(params=WALKS, ids=["blind", "foreseeing", "deceived", "scared"])
def strategy(request):
    return request.param


def make_context(device, strategy, exact=False, target=6400):
    goal = Goal(target=str(target), seq_len=100, headroom=0.0, exact=exact)
    return SearchContext(SPACE, Candidate(), goal, 100, device.budget, predictor=strategy.predictor(device))


devices = st.builds(
    Arithmetic, budget=st.integers(10, 3000), weights=st.integers(1, 400), state=st.integers(1, 400),
    activations=st.integers(11, 200), checkpointed=st.integers(1, 10),
).map(lambda device: device.in_units(16 * MIB))  # fmt: skip


@given(device=devices, exact=st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_search_ends_repeats_nothing_and_stays_legal(device, exact):
    for strategy in WALKS:
        context = make_context(device, strategy, exact)
        history, _ = search(device, context, strategy)
        assert len({trial.candidate for trial in history}) == len(history)
        assert all(SPACE.refusal(trial.candidate) is None for trial in history)
        assert all(
            1 <= trial.candidate.micro_batch <= context.batches(context.base).limit for trial in history
        )
        if exact:
            assert all(context.batches(context.base).allows(trial.candidate.micro_batch) for trial in history)


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
    for strategy in WALKS:
        context = make_context(device, strategy)
        history, _ = search(device, context, strategy)
        assert bool(rank(history, context)) == feasible


@given(device=devices, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_strategy_is_a_pure_function_of_history(device, data):
    for strategy in WALKS:
        context = make_context(device, strategy)
        history, _ = search(device, context, strategy)
        cut = data.draw(st.integers(0, len(history)))
        decision = strategy.propose(history[:cut], context)
        assert decision == strategy.propose(history[:cut], context)
        if cut < len(history):
            assert decision.candidate == history[cut].candidate
        else:
            assert isinstance(decision, Done)


def test_every_try_says_why_and_where(strategy):
    device = Arithmetic(budget=700).in_units(16 * MIB)
    history, done = search(device, make_context(device, strategy), strategy)
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
def test_only_memory_verdicts_descend_the_ladder(strategy, outcome):
    device = Arithmetic(budget=5000).in_units(16 * MIB)  # fits even at three times what is true
    context = make_context(device, strategy)
    first = strategy.propose((), context)
    assert isinstance(first, Try)
    trial = Trial(
        number=1, candidate=first.candidate, node=first.node, why=first.why, outcome=outcome, seconds=1
    )
    following = strategy.propose((trial,), context)
    if isinstance(following, Try):
        assert following.candidate.checkpointing == "none"
        assert following.candidate.offload == "none"
