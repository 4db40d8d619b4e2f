"""What a strategy is and what it answers: what to try next, what to trace first, or that the search is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autotune.candidate import Candidate
from autotune.options import Limits
from autotune.prediction import Prediction
from autotune.search.context import SearchContext
from autotune.search.path import SearchEnd, Step
from autotune.trial import History
from autotune.units import format_counted, format_duration


@dataclass(frozen=True)
class Skip:
    """A candidate that a strategy passed over because the memory model says that it does not fit."""

    candidate: Candidate
    node: str
    prediction: Prediction


@dataclass(frozen=True)
class Try:
    """Probe this candidate next."""

    candidate: Candidate
    node: str
    """Where in the search this is: a node of the decision graph, or the strategy's own words (`rung 3`)."""
    why: str
    """The reason, in a few words that are shown beside the trial."""
    path: tuple[Step, ...] = ()
    """How the graph was walked so far; empty for a strategy that walks none."""
    skipped: tuple[Skip, ...] = ()
    """What was passed over on the way."""
    ahead: int | None = None
    """Probes that are still to come, this one included, about; None where asking on tells."""


@dataclass(frozen=True)
class Done:
    """Nothing more to try."""

    why: str
    reason: SearchEnd
    path: tuple[Step, ...] = ()
    skipped: tuple[Skip, ...] = ()


TRACED_AT_A_TIME = 64
"""Rungs that are traced together, at most: they share workers, which build a model and compile a block once."""


@dataclass(frozen=True)
class TraceFirst:
    """Trace these rungs before anything is decided."""

    rungs: tuple[Candidate, ...]
    """Each of them new: neither in the context's predictor nor among what cannot be traced."""
    why: str
    path: tuple[Step, ...] = ()
    """As a `Try`'s."""
    skipped: tuple[Skip, ...] = ()


Decision = Try | Done | TraceFirst


class Strategy(Protocol):
    """Decides what to probe next. `autotune.testing.strategies.StrategyContract` holds what any of them must keep.

    Nothing of a strategy is stored: it is asked anew after each probe, and a resumed run replays the journal.
    """

    @property
    def name(self) -> str:
        """What `--strategy` calls it."""
        ...

    @property
    def prices(self) -> bool:
        """Whether it asks for traces and compares prices.

        Then a simulated device is priced by the memory model before it is asked, and one without a data sheet is timed.
        """
        ...

    def propose(self, history: History, context: SearchContext) -> Decision:
        """Return the next candidate, what to trace first, or that the search is over: a pure function of its arguments.

        It reads no clock and no file and keeps nothing between calls; what it draws at random follows from
        `context.seed` and the history. A candidate of the history is never proposed again. The limits are not its
        concern: `decide` ends the search where they are spent.
        """
        ...


def decide(strategy: Strategy, history: History, context: SearchContext) -> Decision:
    """Return what a strategy proposes, or the end of the search where the limits leave no more probes.

    Then nothing is traced either: it would only tell what no probe may try.
    """
    decision = strategy.propose(history, context)
    if not isinstance(decision, Done) and (end := _spent(history, context.limits)):
        return Done(*end, decision.path, decision.skipped)
    return decision


def _spent(history: History, limits: Limits) -> tuple[str, SearchEnd] | None:
    """Return which limit has ended the search, in words and typed, or None."""
    if len(history) >= limits.max_probes:
        return f"stopped after {format_counted(limits.max_probes, 'probe')} (--max-probes)", "max_probes"
    seconds = sum(trial.seconds for trial in history)
    if limits.time_budget is not None and seconds >= limits.time_budget:
        return f"stopped after {format_duration(seconds)} of probes (--time-budget)", "time_budget"
    return None
