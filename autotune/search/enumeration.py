"""What was tried of each rung, and which of its micro-batches are still open."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.candidate import Candidate
from autotune.outcome import Lost, Ok, Outcome
from autotune.search.context import SearchContext
from autotune.trial import History

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
