"""Grow the micro-batch of one rung: by what the memory model expects, else by doubling and bisection."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.candidate import Candidate
from autotune.memory.predictor import Predictor
from autotune.search.context import SearchContext
from autotune.search.graph import LOST, Growth
from autotune.units import format_bytes

LIKELY = 0.8
"""Probability of fitting from which on growth goes to a micro-batch at once. Where it fits, a probe of a smaller one
that surely fits is spared. After one that did not fit, growth goes to what surely fits."""


@dataclass(frozen=True)
class Next:
    """The micro-batch to probe next."""

    micro_batch: int
    why: str


@dataclass(frozen=True)
class Bracket:
    """How far growth came: the largest micro-batch that fits, and the smallest that does not."""

    largest: int
    failing: int | None
    """None where the goal has use for nothing larger."""


class Grower:
    """Decides from what a rung's micro-batches came to. Every decision is made anew from these."""

    def __init__(
        self,
        candidate: Candidate,
        growth: Growth,
        edges: Mapping[int, str],
        context: SearchContext,
        predictor: Predictor | None,
    ) -> None:
        """Start at `candidate`, which fits; `edges` holds the edge of each trial of its rung by micro-batch."""
        self._rung = candidate
        self._growth = growth
        self._edges = edges
        self._batches = context.batches(candidate)
        self._usable = context.usable
        self._predictor = predictor
        self._low = candidate.micro_batch
        self._high = min(self._batches.limit, growth.largest or self._batches.limit) + 1
        self._failing: int | None = None
        self._lost = frozenset(size for size, edge in edges.items() if edge == LOST)

    def go(self) -> Next | Bracket:
        """Return what to probe next, or how far growth came.

        A larger micro-batch that ends in anything but `ok` or `oom` (a crash, a timeout) ends growth like the
        goal's own limit does: it says nothing about memory, and the sizes next to it would cost as much. Where
        prediction had jumped to it, smaller ones are still found by doubling. One that was lost says nothing at all:
        growth passes over it, to the useful ones beside it.
        """
        while True:
            following = self._by_prediction() or self._blindly()
            if isinstance(following, Bracket):
                if following.largest not in self._edges:
                    return Next(following.largest, "predicted to fit, and nothing larger does")
                return following
            match self._edges.get(following.micro_batch, "").partition("_")[0]:
                case "":
                    return following
                case "ok":
                    self._low = following.micro_batch
                case "oom":
                    self._failing = self._high = following.micro_batch
                case _:
                    if self._predictor is None:
                        return Bracket(self._low, self._failing)
                    self._predictor, self._high = None, following.micro_batch

    def _blindly(self) -> Next | Bracket:
        """Double until it does not fit, then bisect between the largest that fits and the smallest that does not."""
        low, failing = self._low, self._failing
        if failing is None:
            size = self._batches.between(low, low * self._growth.factor, self._high, self._lost)
            why = f"micro-batch {low} fits: try {size}"
        elif self._is_close(low, failing):
            return Bracket(low, failing)
        else:
            size = self._batches.between(low, (low + failing) // 2, failing, self._lost)
            why = f"{low} fits and {failing} does not: bisect"
        return Bracket(low, failing) if size is None else Next(size, why)

    def _by_prediction(self) -> Next | Bracket | None:
        """Go to what most likely fits; then as long as something larger may fit, there. None without a prediction."""
        if self._predictor is None:
            return None
        batches, low, most = self._batches, self._low, self._high - 1
        # Others are left out, not only because nothing would be probed there: all that is below the whole global batch
        # needs room to add to gradients, so a bisection over every size would stop short of it though it fits.
        useful = batches.useful[: bisect_right(batches.useful, most)]
        sizes = [
            self._predictor.largest(self._rung, self._usable, useful, end) for end in ("high", "mean", "low")
        ]
        sure, expected, possible = (size or 0 for size in sizes)
        if sizes[2] is None:
            return None
        over = batches.above(max(possible, low))  # the smallest that is predicted not to fit
        failing = self._failing if over is None or over >= self._high else over
        top = batches.up_to(low, possible, self._lost)
        if top is None or (failing is not None and low in self._edges and self._is_close(low, failing)):
            return Bracket(low, failing)
        likely = expected if self._failing is None else sure
        while likely > max(low, sure) and self._fit(likely) < LIKELY:
            likely = batches.up_to(0, likely - 1) or 0
        size = batches.up_to(low, likely, self._lost) or batches.up_to(low, expected, self._lost) or top
        bounds = self._predictor.bounds(self._rung.at(size))
        assert bounds is not None, "what is largest was predicted"
        return Next(size, f"the largest predicted to fit, with {format_bytes(round(bounds.mean))}")

    def _fit(self, size: int) -> float:
        """Return how probable it is that a micro-batch fits."""
        assert self._predictor is not None
        bounds = self._predictor.bounds(self._rung.at(size))
        return 0.0 if bounds is None else bounds.probability_within(self._usable)

    def _is_close(self, low: int, failing: int) -> bool:
        return failing - low <= max(1, int(low * self._growth.resolution))
