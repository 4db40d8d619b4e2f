"""Which micro-batches of a rung fit, as the memory model has it after a run's probes, and how surely. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal

from autotune.candidate import Candidate
from autotune.memory.fewest_checkpointed import fewest_checkpointed, with_checkpointed_blocks
from autotune.memory.predictor import Predictor
from autotune.outcome import Lost, Ok, Oom, Timeout
from autotune.search.context import SearchContext
from autotune.search.enumeration import Tried, closed_from, tried_sizes
from autotune.search.ladder import MemoryLine
from autotune.trial import History

SURE = 0.975
"""Probability of fitting from which on a candidate is taken to fit surely."""
SIZES = 3
"""Micro-batches of a rung that compete: so many of the largest that surely fit, and halves."""
FAR = 2.0
"""How many times the device's memory the samples take by which a rung's line is told, at most. Far beyond any device,
where a training takes a terabyte, what is reserved is not simulated (`memory.unlimited.MOST_BLOCKS`), and two sizes
of which only one is simulated tell no line."""
SLACK = 0.1
"""Share of the memory by which a combination may take less than its techniques one by one let expect. Assumed."""


class Room:
    """The memory of a device as a search knows it at one moment. Remembers what it computed."""

    def __init__(
        self, history: History, context: SearchContext, predictor: Predictor, simulated: bool
    ) -> None:
        """`predictor` knows what the history taught; what is `simulated` comes out as it predicts."""
        self.tried: Tried = tried_sizes(history)
        """What each rung came to, by micro-batch."""
        self._probed = {trial.candidate for trial in history}
        self._context = context
        self._predictor = predictor
        self._simulated = simulated
        self._bound: Literal["mean", "high"] = "mean" if simulated else "high"
        self._taken: dict[Candidate, MemoryLine | None] = {}
        self._by_family: dict[Candidate, list[Candidate]] | None = None
        self._overrun = any(
            isinstance(trial.outcome, Oom)
            or (isinstance(trial.outcome, Ok) and not context.fits(trial.outcome.memory))
            for trial in history
        )

    def covers(self, rung: Candidate) -> bool:
        """Tell whether a rung was traced, or composed of what was."""
        return self._predictor.covers(rung)

    def is_known(self, rung: Candidate) -> bool:
        """Tell whether tracing a rung would teach nothing: that is done, or cannot be."""
        return self.covers(rung) or rung in self._context.untraceable

    def is_closed(self, rung: Candidate, size: int) -> bool:
        """Tell whether what a rung came to forbids this micro-batch."""
        end = closed_from(rung, self.tried, self._context)
        return end is not None and size >= end

    def is_tried(self, candidate: Candidate) -> bool:
        """Tell whether a candidate was probed."""
        return candidate in self._probed

    def fit(self, candidate: Candidate) -> float:
        """Return how probable it is that a candidate fits; 1 where nothing is predicted of it."""
        bounds = None if self._simulated else self._predictor.bounds(candidate)
        return 1.0 if bounds is None else bounds.probability_within(self._context.usable)

    def largest(self, rung: Candidate) -> int:
        """Return the largest micro-batch that the goal has use for, whether or not it fits."""
        batches = self._context.batches(rung)
        return batches.up_to(0, batches.limit) or 1

    def sure(self, rung: Candidate) -> list[int]:
        """Return useful micro-batches of a traced rung that surely fit and did not fail, largest first.

        Some of the largest, and then each half the one before: where more samples are hardly faster, their probe is
        only longer.
        """
        batches = self._context.batches(rung)
        most = self._predictor.largest(rung, self._context.usable, self._open(rung), self._bound) or 0
        sizes: list[int] = []
        while len(sizes) < SIZES and (size := batches.up_to(0, most)) is not None:
            sizes.append(size)
            most = size - 1
        while sizes and (size := batches.up_to(0, sizes[-1] // 2)) is not None:
            sizes.append(size)
        return sizes

    def likely(self, rung: Candidate) -> list[int]:
        """Return the largest useful micro-batch that is more likely to fit than not, where it does not surely.

        No size once something has run out of memory: one such probe a search is what that may cost.
        """
        if self._simulated or self._overrun:
            return []
        most = self._predictor.largest(rung, self._context.usable, self._open(rung), "mean") or 0
        size = self._context.batches(rung).up_to(0, most)
        return [] if size is None or self.fit(rung.at(size)) >= SURE else [size]

    def peak(self, candidate: Candidate) -> float | None:
        """Return the peak (bytes) that has to be within what is usable for a candidate to fit; None without a trace."""
        bounds = self._predictor.bounds(candidate)
        return None if bounds is None else float(getattr(bounds, self._bound))

    def fewest_checkpointed(self, rung: Candidate, size: int) -> Candidate | None:
        """Return a rung at a micro-batch with the fewest of its blocks checkpointed that surely fits.

        Of the numbers that a trace tells of, and that no probe of as many and as small a micro-batch forbids. None
        where not even all blocks make it fit.
        """
        assert self._context.model is not None
        blocks = self._context.model.blocks
        found = fewest_checkpointed(
            self._predictor, rung.at(size), self._context.usable, blocks, self._bound, known_only=True
        )
        if not isinstance(found, Candidate) or found.checkpointing == "none":
            return found if isinstance(found, Candidate) else None
        failed, trained = self._failed(rung, size, blocks), self._trained(rung, size)
        if failed and not trained:
            failed += (blocks - failed) // 4  # by how much it was over, it did not say
        count = blocks if found.checkpointed_blocks == "all" else found.checkpointed_blocks
        allowed = (
            with_checkpointed_blocks(found, one, blocks) for one in range(max(count, failed + 1), blocks + 1)
        )
        return next((one for one in allowed if self.covers(one)), None)

    def is_barred(self, rung: Candidate) -> bool:
        """Tell whether a number of a rung's blocks failed, checkpointed, for another reason than memory or time."""
        return any(
            not isinstance(outcome, (Ok, Oom, Timeout, Lost))
            for one in self._numbers(rung)
            for outcome in self.tried[one].values()
        )

    def _failed(self, rung: Candidate, size: int, blocks: int) -> int:
        """Return the largest number of checkpointed blocks that did not do at this micro-batch, or a smaller one."""
        failed = 0
        for one in self._numbers(rung):
            end = closed_from(one, self.tried, self._context)
            if end is not None and size >= end:
                slow = any(isinstance(outcome, Timeout) for outcome in self.tried[one].values())
                count = one.checkpointed_blocks
                failed = max(failed, blocks if slow or count == "all" else count)
        return failed

    def _trained(self, rung: Candidate, size: int) -> bool:
        """Tell whether a number of blocks, but not all, trained at this micro-batch or a larger one."""
        return any(
            isinstance(outcome, Ok) and tried >= size and self._context.fits(outcome.memory)
            for one in self._numbers(rung)
            if one.checkpointed_blocks != "all"
            for tried, outcome in self.tried[one].items()
        )

    def _numbers(self, rung: Candidate) -> list[Candidate]:
        """Return the rungs that were tried and differ from this one in the number of checkpointed blocks alone."""
        if self._by_family is None:
            self._by_family = {}
            for one in self.tried:
                family = one.model_copy(update={"checkpointed_blocks": "all"})
                self._by_family.setdefault(family, []).append(one)
        return self._by_family.get(rung, [])

    def hoped(self, rung: Candidate) -> int:
        """Return the largest useful micro-batch that a rung may fit with, which is not traced yet.

        By what its techniques take one by one. 0 where there is no hope of any.
        """
        size = self._context.ladder.guess_size(rung, (1 + SLACK) * self._context.usable, self._takes)
        return self.largest(rung) if size is None else self._context.batches(rung).up_to(0, size) or 0

    def hoped_and_halves(self, rung: Candidate) -> list[int]:
        """Return `hoped`, and then each half the one before, whose probe is shorter. Empty where there is no hope."""
        batches, size = self._context.batches(rung), self.hoped(rung) or None
        sizes: list[int] = []
        while size is not None:
            sizes.append(size)
            size = batches.up_to(0, size // 2)
        return sizes

    def guess_taken(self, rung: Candidate) -> MemoryLine | None:
        """Return what a rung takes, by its trace or else by its techniques one by one; None where these are unknown."""
        return self._takes(rung) or self._context.ladder.guess_taken(rung, self._takes)

    def _open(self, rung: Candidate) -> tuple[int, ...]:
        """Return the useful micro-batches of a rung that nothing forbids so far."""
        useful = self._context.batches(rung).useful
        end = closed_from(rung, self.tried, self._context)
        return useful if end is None else useful[: bisect_left(useful, end)]

    def _takes(self, rung: Candidate) -> MemoryLine | None:
        """Return what a traced rung takes at large micro-batches."""
        if rung not in self._taken:
            self._taken[rung] = self._measure(rung) if self.covers(rung) else None
        return self._taken[rung]

    def _measure(self, rung: Candidate) -> MemoryLine | None:
        large = max(2, self.largest(rung))
        if (least := self._predictor.least(rung.at(large))) is None:
            return None
        # The program of a single sample is another one, so half of it is two, if the goal has use for four.
        large = min(large, max(4, int(large * FAR * self._context.usable / least)))
        half, whole = (self._predictor.bounds(rung.at(size)) for size in (large // 2, large))
        if half is None or whole is None:
            return None
        per_sample = max(1.0, (whole.mean - half.mean) / (large - large // 2))
        return MemoryLine(whole.mean - large * per_sample, per_sample)
