"""What was tried of each rung, and which of its micro-batches are still open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.candidate import Candidate
from autotune.outcome import Lost, Ok, Oom, Outcome, Timeout
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

    See `closed_from` for those that may not.
    """
    sizes = tried.get(rung, {})
    end = closed_from(rung, tried, context)
    for size in context.batches(rung).useful:
        if end is not None and size >= end:
            return
        if size not in sizes:
            yield size


def closed_from(rung: Candidate, tried: Tried, context: SearchContext) -> int | None:
    """Return the micro-batch of a rung from which on none is tried any more; None where nothing has failed.

    What did not fit or did not end in time at one micro-batch is not tried at larger ones, and what failed otherwise,
    or cannot run here, at none. Something lost says nothing of the others.
    """
    ends = []
    for size, outcome in tried.get(rung, {}).items():
        match outcome:
            case Ok(memory=memory) if context.fits(memory):
                pass
            case Lost():
                pass
            case Ok() | Oom() | Timeout():
                ends.append(size)
            case _:
                ends.append(1)
    return min(ends, default=None)


def legal_rung(wanted: Mapping[str, Any], context: SearchContext) -> Candidate:
    """Return the base with each of these values that is legal with those before it, in their order.

    One that only a later one makes legal is taken too. So rules between axes cost a search no draws, however few
    combinations of a large space they leave.
    """
    rung, left = context.base.rung(), list(wanted)

    def tries() -> Iterator[tuple[str, Candidate]]:
        for axis in left:
            tried = rung.model_copy(update={axis: wanted[axis]})
            if context.refusal(tried) is None:
                yield axis, tried

    while found := next(tries(), None):
        taken, rung = found
        left.remove(taken)
    return rung
