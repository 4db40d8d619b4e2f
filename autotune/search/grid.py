"""Try everything: each legal rung of the space in order, at each micro-batch that is worth a probe."""

from __future__ import annotations

from autotune.search.context import SearchContext
from autotune.search.enumeration import open_sizes, tried_sizes
from autotune.search.strategy import Done, Try
from autotune.techniques.families import title as title_of
from autotune.trial import History


class Grid:
    """Every legal candidate, smallest micro-batch first; nothing is passed over by prediction.

    Only what was measured ends a rung: beyond a micro-batch that did not fit, larger ones are not tried. So it finds
    the fastest candidate of a space, at the price of all others; raise `--max-probes` to let it.
    """

    name = "grid"
    prices = False

    def propose(self, history: History, context: SearchContext) -> Try | Done:
        """Return the first candidate in order that is still open."""
        tried, number = tried_sizes(history), 0
        for number, rung in enumerate(context.rungs(), start=1):
            size = next(open_sizes(rung, tried, context), None)
            if size is None:
                continue
            before = tried.get(rung)
            why = (
                f"micro-batch {max(before)} was tried: {size} is next"
                if before
                else f"{title_of(rung)} is next in the grid"
            )
            return Try(rung.at(size), f"rung {number}", why)
        return Done(f"all {number} legal rungs of the space were tried", "exhausted")
