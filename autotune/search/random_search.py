"""Try at random: legal candidates of the space, drawn by a seed."""

from __future__ import annotations

from random import Random

from autotune.candidate import Candidate
from autotune.search.context import SearchContext
from autotune.search.enumeration import legal_rung, open_sizes, tried_sizes
from autotune.search.grid import Grid
from autotune.search.strategy import Decision, Done, Try
from autotune.trial import History

DRAWS = 50
"""Rungs drawn before the first open one in the order of the grid is taken: then few are left, or hard to come by."""


class RandomSearch:
    """Rungs and micro-batches drawn from all that are open. The draw follows from the seed and the number of trials."""

    name = "random"
    prices = False

    def propose(self, history: History, context: SearchContext) -> Decision:
        """Return a candidate that was not tried, or that none is left."""
        tried = tried_sizes(history)
        random = Random(f"{context.seed} {len(history)}")
        for _ in range(DRAWS):
            rung = _drawn(random, context)
            if context.is_open(rung) and (sizes := list(open_sizes(rung, tried, context))):
                return Try(rung.at(random.choice(sizes)), "random", f"drawn with seed {context.seed}")
        decision = Grid().propose(history, context)
        if isinstance(decision, Done):
            return decision
        return Try(decision.candidate, "random", f"few are left: {DRAWS} draws found nothing new")


def _drawn(random: Random, context: SearchContext) -> Candidate:
    """Return a rung: each axis takes a drawn value where that is legal with the others; their order is drawn too."""
    axes = list(context.space.axes)
    wanted = {axis: random.choice(context.values(axis)) for axis in random.sample(axes, len(axes))}
    return legal_rung(wanted, context)
