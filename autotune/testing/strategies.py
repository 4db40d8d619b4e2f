"""What every strategy must keep, as tests: subclass `StrategyContract` and say how the strategy is made.

    class TestMine(StrategyContract):
        def make_strategy(self) -> Strategy:
            return Mine()

The strategy searches devices made of arithmetic, in each space of `SPACES`, without a memory model and with ones that
are right, too low and too high. Whether it finds the fastest is no part of the contract.
"""

from __future__ import annotations

import builtins
import io
import itertools
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, NoReturn

import pytest

from autotune.assets import find_text
from autotune.candidate import Candidate
from autotune.options import Limits
from autotune.outcome import Crash, Lost, NonFinite, Oom, Outcome, Timeout, Unsupported
from autotune.search.context import SearchContext
from autotune.search.space import Space
from autotune.search.strategies import STRATEGIES
from autotune.search.strategy import Done, Strategy, TraceFirst, Try, decide
from autotune.specs import GlobalBatch, Goal
from autotune.testing.arithmetic import Arithmetic, answered, foreseeing
from autotune.trial import History, Trial
from autotune.units import MIB

VERDICTS: tuple[Outcome, ...] = (
    Oom(phase="build"),
    Oom(phase="forward", requested=10, free=1),
    NonFinite(phase="forward", step=1, what="loss"),
    Timeout(phase="forward", seconds=1.0),
    Crash(reason="signal", phase="forward", message="SIGSEGV"),
    Lost(cause="worker", phase="forward", message="SIGKILL"),
    Unsupported(reason="no bf16"),
)
"""One verdict of each kind that is not good, and where it matters of each phase."""


class SearchRun(NamedTuple):
    """A search from its first probe to its end."""

    contexts: tuple[SearchContext, ...]
    """What was known when each probe was proposed, and at the end: what was traced meanwhile is of later ones."""
    history: History
    done: Done


class StrategyContract:
    """The tests of a strategy. Subclass it under a name that pytest collects (`Test...`)."""

    SPACES: ClassVar[tuple[str, ...]] = ("minimal", "basic")
    """Search spaces: names of shipped ones, or paths to YAML files."""
    BUDGETS: ClassVar[tuple[int, ...]] = (5, 150, 440, 1000)
    """Of the device, in 16 MiB: nothing fits, full offload alone, checkpointing at the least, and the plain run."""
    FACTORS: ClassVar[tuple[float | None, ...]] = (None, 1.0, 0.5, 3.0)
    """By what the memory model is off; None goes without one."""
    MOST: ClassVar[int] = 1000
    """Probes within which a search on these devices has to end by itself."""

    _made: ClassVar[dict[tuple[str, int, float | None], SearchRun]]

    def make_strategy(self) -> Strategy:
        """Return the strategy under test."""
        raise NotImplementedError

    def make_context(
        self, device: Arithmetic, space: str = "basic", factor: float | None = None, **limits: Any
    ) -> SearchContext:
        """Return a context for a device: 16 samples of 100 tokens a global step."""
        goal = Goal(target=GlobalBatch(amount=1600), seq_len=100, headroom=0.0)
        return SearchContext(
            space=Space.parse(find_text(space), space), base=Candidate(), goal=goal, tokens_per_sample=100,
            budget=device.budget, limits=Limits(**limits), seed=3,
            predictor=None if factor is None else foreseeing(device, factor), speed=None if factor is None else device,
        )  # fmt: skip

    def test_its_name_is_what_chooses_it(self) -> None:
        strategy = self.make_strategy()
        assert strategy.name
        assert strategy.name == strategy.name.strip().lower()
        if strategy.name in STRATEGIES:
            assert type(STRATEGIES[strategy.name]) is type(strategy)

    def test_a_search_ends_and_tries_nothing_twice(self) -> None:
        for _, history, done in self._searches():
            assert len({trial.candidate for trial in history}) == len(history), "each candidate once"
            assert done.why
            assert done.reason in {"exhausted", "settled", "crashed"}, (
                "the limits are not a strategy's to look at"
            )

    def test_what_it_tries_is_legal_and_of_use(self) -> None:
        for (context, *_), history, _ in self._searches():
            for trial in history:
                assert context.space.refusal(trial.candidate) is None
                assert context.batches(trial.candidate).allows(trial.candidate.micro_batch)
                assert 1 <= trial.candidate.micro_batch <= context.batches(trial.candidate).limit

    def test_every_try_says_why_and_where(self) -> None:
        for (context, *_), history, done in self._searches():
            assert all(trial.why and trial.node for trial in history)
            assert all(step.node in context.space.graph.nodes for step in done.path)

    def test_it_is_a_pure_function_of_history_and_context(self) -> None:
        for contexts, history, _ in self._searches():
            strategy = self.make_strategy()
            strategy.propose(history, contexts[-1])  # what it imports late, it has imported
            with _nothing_but_arguments():
                for end in (0, len(history) // 2, len(history), 0):  # and it remembers nothing of the others
                    decision = strategy.propose(history[:end], contexts[end])
                    assert decision == strategy.propose(history[:end], contexts[end])

    def test_any_part_of_a_journal_leads_to_what_came_next(self) -> None:
        for contexts, history, done in self._searches():
            fresh = self.make_strategy()
            for end in {0, 1, len(history) // 2, max(0, len(history) - 1)} & set(range(len(history))):
                decision = fresh.propose(_replayed(history[:end]), contexts[end])
                assert isinstance(decision, Try), f"{len(history)} probes were made, and it ends after {end}"
                assert decision.candidate == history[end].candidate
            assert fresh.propose(_replayed(history), contexts[-1]) == done

    @pytest.mark.parametrize("most", [1, 3])
    def test_the_limits_end_it(self, most: int) -> None:
        device = _device(1000)
        context = self.make_context(device, max_probes=most)
        _, history, done = self._search(device, context)
        assert len(history) <= most
        if done.reason == "max_probes":
            assert len(history) == most
            assert "--max-probes" in done.why
        timed = replace(context, limits=Limits(time_budget=float(most)))
        _, history, _ = self._search(device, timed)
        assert len(history) <= most, "each of these probes takes a second"

    @pytest.mark.parametrize("outcome", VERDICTS, ids=lambda outcome: str(outcome.kind))
    def test_it_has_an_answer_to_every_verdict(self, outcome: Outcome) -> None:
        device = _device(1000)
        for factor in self.FACTORS:
            context = self.make_context(device, self.SPACES[0], factor, max_probes=self.MOST)
            first = self.make_strategy().propose((), context)
            assert isinstance(first, Try)
            _, history, done = self._search(device, context, {first.candidate: outcome})
            assert first.candidate not in [trial.candidate for trial in history[1:]]
            assert done.why

    def test_a_search_in_which_everything_is_lost_ends_too(self) -> None:
        context = self.make_context(_device(1000))
        lost = Lost(cause="tuner", phase="start", message="SIGKILL")
        history: History = ()
        while isinstance(decision := decide(self.make_strategy(), history, context), Try):
            history += (_trial(len(history) + 1, decision, lost),)
            assert len(history) <= context.limits.max_probes

    def _searches(self) -> Iterator[SearchRun]:
        """Yield every case with its search, which is made once for all tests of a class."""
        searches = type(self).__dict__.get("_made") or {}
        type(self)._made = searches
        for case in itertools.product(self.SPACES, self.BUDGETS, self.FACTORS):
            if case not in searches:
                space, budget, factor = case
                device = _device(budget)
                context = self.make_context(device, space, factor, max_probes=self.MOST)
                searches[case] = self._search(device, context)
            yield searches[case]

    def _search(
        self, device: Arithmetic, context: SearchContext, verdicts: dict[Candidate, Outcome] | None = None
    ) -> SearchRun:
        """Search a device to the end, a second a probe; `verdicts` replace what the device says of a candidate."""
        strategy = self.make_strategy()
        history: History = ()
        contexts = []
        while not isinstance(decision := decide(strategy, history, context), Done):
            if isinstance(decision, TraceFirst):
                context = answered(context, decision)
                continue
            contexts.append(context)
            outcome = (verdicts or {}).get(decision.candidate) or device.outcome(decision.candidate)
            history += (_trial(len(history) + 1, decision, outcome),)
            assert len(history) <= self.MOST, "a search ends"
        return SearchRun((*contexts, context), history, decision)


def _device(budget: int) -> Arithmetic:
    return Arithmetic(budget=budget).in_units(16 * MIB)


def _trial(number: int, decision: Try, outcome: Outcome) -> Trial:
    return Trial(
        number=number, candidate=decision.candidate, node=decision.node, why=decision.why, outcome=outcome, seconds=1.0
    )  # fmt: skip


def _replayed(history: History) -> History:
    """Return a history as a journal gives it back."""
    return tuple(Trial.model_validate_json(trial.model_dump_json()) for trial in history)


def _forbidden(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("a strategy reads no file, no clock and no dice but what follows from its arguments")


@contextmanager
def _nothing_but_arguments() -> Iterator[None]:
    """Have files, clocks and the shared random numbers raise."""
    places = (
        (builtins, "open"), (io, "open"), (os, "open"), (os, "urandom"),
        (time, "time"), (time, "monotonic"), (time, "perf_counter"), (time, "time_ns"), (time, "monotonic_ns"),
        (random, "random"), (random, "choice"), (random, "shuffle"), (random, "randrange"), (random, "sample"),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for module, name in places:
            patch.setattr(module, name, _forbidden)
        yield
