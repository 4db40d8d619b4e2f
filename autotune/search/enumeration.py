"""The candidates of a space without its graph: every legal rung, and the micro-batches of it that are still open."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from autotune.candidate import Candidate
from autotune.outcome import Lost, Ok, Outcome
from autotune.search.context import SearchContext
from autotune.trial import History


def legal_rungs(context: SearchContext) -> Iterator[Candidate]:
    """Yield every rung that may be tried, each at micro-batch 1, in the order of the space's axes and their values.

    The last axis changes fastest. An axis that the space leaves out keeps its value in `context.base`.
    """
    axes = context.space.axes
    for values in product(*(context.values(axis) for axis in axes)):
        rung = context.base.model_copy(update=dict(zip(axes, values, strict=True))).rung()
        if is_open(rung, context):
            yield rung


def is_open(rung: Candidate, context: SearchContext) -> bool:
    """Tell whether a rung may be tried: it is legal, can run as far as that is known, and the goal has use for it."""
    smallest = context.batches(rung).above(0)
    return (
        smallest is not None and not context.passes_over(rung) and context.refusal(rung.at(smallest)) is None
    )


Tried = dict[Candidate, dict[int, Outcome]]
"""What the micro-batches of each rung came to."""


def tried_sizes(history: History) -> Tried:
    """Return a history by rung and micro-batch."""
    tried: Tried = {}
    for trial in history:
        tried.setdefault(trial.candidate.rung(), {})[trial.candidate.micro_batch] = trial.outcome
    return tried


def open_sizes(rung: Candidate, tried: Tried, context: SearchContext) -> Iterator[int]:
    """Yield the useful micro-batches of a rung that were not tried and may yet train, smallest first.

    What did not fit, did not end in time, or failed otherwise at one micro-batch is not tried at larger ones, and what
    this machine cannot run at none. Something lost says nothing of the others.
    """
    sizes = tried.get(rung, {})
    failed = (
        size
        for size, outcome in sizes.items()
        if not isinstance(outcome, Lost) and not (isinstance(outcome, Ok) and context.fits(outcome.memory))
    )
    end = min(failed, default=None)
    for size in context.batches(rung).useful():
        if end is not None and size >= end:
            return
        if size not in sizes:
            yield size
