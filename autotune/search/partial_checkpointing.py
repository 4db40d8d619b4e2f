"""How many of a rung's blocks to checkpoint, taken from the memory model: with each micro-batch as few as fit. Pure.

Where the space leaves the number open (`checkpointed_blocks: [any]`), a rung that checkpoints all blocks stands for the
others. Peak and time are nearly straight lines in the number, so two numbers tell about where the best one lies; only
that is then looked up. Numbers that a space lists are rungs like any other, and nothing is added to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from autotune.candidate import Candidate
from autotune.memory.fewest_checkpointed import with_checkpointed_blocks
from autotune.search.context import SearchContext
from autotune.search.room import SLACK, Room

SAMPLED = 8
"""Micro-batches of a rung at which the number of blocks is looked for: from the smallest that asks for any on, in equal
ratios."""
COMPETING = 3
"""Of these, how many are looked up: those that two numbers let expect to be the fastest."""


class Partly(NamedTuple):
    """A candidate some of whose blocks are checkpointed, as two other numbers of them let expect."""

    candidate: Candidate
    seconds: float
    """Of a global step, uncorrected."""


class _Line(NamedTuple):
    """Peak (bytes) and time (seconds of a global step) with all blocks checkpointed, and with fewer."""

    fewer: int
    peaks: tuple[float, float]
    seconds: tuple[float, float]

    def fewest(self, usable: float, blocks: int) -> int:
        """Return how many blocks have to be checkpointed to stay within so many bytes; one too many if all do not."""
        fewer, every = self.peaks
        if every > usable:
            return blocks + 1
        if fewer <= every:
            return 0
        return max(0, blocks - int((usable - every) / (fewer - every) * (blocks - self.fewer)))

    def at(self, count: int, blocks: int) -> float:
        """Return the seconds of a global step with so many blocks checkpointed."""
        fewer, every = self.seconds
        return every + (blocks - count) / (blocks - self.fewer) * (fewer - every)


class PartialCheckpointing:
    """Chooses the number of checkpointed blocks together with the micro-batch, at one moment of a search."""

    def __init__(
        self, context: SearchContext, room: Room,
        seconds: Callable[[Candidate], float | None], guess: Callable[[Candidate, int], float | None],
    ) -> None:  # fmt: skip
        """`seconds` are those of a global step of what was traced, `guess` those of a rung by its techniques."""
        self._context = context
        self._room = room
        self._seconds = seconds
        self._guess = guess
        self._blocks = context.model.blocks if context.model else 0

    def is_possible(self, rung: Candidate) -> bool:
        """Tell whether any number of a rung's blocks may be checkpointed, and none was refused by a probe."""
        return self._context.takes_numbers(rung) and not self._room.is_barred(rung)

    def fitting(self, rung: Candidate) -> list[Candidate]:
        """Return untried candidates that surely fit, of a traced rung of which some number of blocks was traced too.

        At micro-batches that seem fastest, each with the fewest blocks checkpointed that fit.
        """
        expected = sorted(self._known(rung), key=lambda one: one.seconds)[:COMPETING]
        fewest = (self._room.fewest_checkpointed(rung, one.candidate.micro_batch) for one in expected)
        return [
            one
            for one in dict.fromkeys(fewest)
            if one is not None
            and one.checkpointed_blocks != "all"
            and one.rung() not in self._context.refused
            and not self._room.is_tried(one)
        ]

    def to_trace(self, rung: Candidate) -> Iterator[Partly]:
        """Yield what a traced rung asks to be traced before a number can be chosen, as fast as it may then be.

        The middle number tells of nearly all others where a model has blocks enough; else each tells of itself.
        """
        if not self.is_possible(rung):
            return
        middle = self._with(rung, self._blocks // 2)
        known = self._room.covers(middle)
        if middle in self._context.untraceable:
            return
        asked: dict[Candidate, Partly] = {}
        for one in self._known(rung) if known else self._expected(rung):
            number = one.candidate.rung() if known else middle
            if self._room.is_known(number) or number in self._context.refused:
                continue
            if number not in asked or one.seconds < asked[number].seconds:
                asked[number] = Partly(number.at(one.candidate.micro_batch), one.seconds)
        yield from asked.values()

    def quickest(self, rung: Candidate) -> float | None:
        """Return the seconds of a global step that no number of a rung's blocks is below, whether or not it fits."""
        return self._plain_seconds(rung, self._room.largest(rung))

    def hoped(self, rung: Candidate) -> Partly | None:
        """Return what a rung that is not traced may come to with some of its blocks checkpointed; None without hope.

        At the smallest micro-batch that asks for any, by what its techniques save and cost one by one: the larger it
        is, the more blocks have to be. What is not known of its checkpointing is taken to spare all that grows with
        the micro-batch.
        """
        if not self.is_possible(rung):
            return None
        return next(iter(self._expected(rung, 1)), None)

    def _with(self, rung: Candidate, count: int) -> Candidate:
        return with_checkpointed_blocks(rung, count, self._blocks)

    def _plain_seconds(self, rung: Candidate, size: int) -> float | None:
        plain = self._with(rung, 0)
        return self._seconds(plain.at(size)) if self._room.covers(plain) else self._guess(plain, size)

    def _known(self, rung: Candidate) -> Iterator[Partly]:
        """Yield what the middle number and all blocks let expect, at some micro-batches that fit with all of them."""
        if not self.is_possible(rung):
            return
        count = self._blocks // 2
        middle, plain = self._with(rung, count), self._with(rung, 0)
        if not self._room.covers(middle) or not (sizes := self._room.sure(rung)):
            return
        least = max(self._room.sure(plain), default=0) if self._room.covers(plain) else 0
        for size in self._sampled(rung, least, sizes[0]):
            peaks = [self._room.peak(one.at(size)) for one in (middle, rung)]
            seconds = [self._seconds(one.at(size)) for one in (middle, rung)]
            yield from self._partly(rung, size, count, peaks, seconds, self._context.usable)

    def _expected(self, rung: Candidate, samples: int = SAMPLED) -> Iterator[Partly]:
        """Yield what none and all of the blocks let expect, where neither need be traced."""
        plain, room = self._with(rung, 0), self._room
        if (without := room.guess_taken(plain)) is None:
            return
        every = room.guess_taken(rung) or without._replace(per_sample=1.0)
        usable = self._context.usable
        if not (room.covers(plain) and room.covers(rung)):
            usable = int(usable * (1 + SLACK))
        least = max(0, int((usable - without.fixed) / without.per_sample))
        most = max(0, int((usable - every.fixed) / every.per_sample))
        for size in self._sampled(rung, least, most, samples):
            peaks = [taken.fixed + size * taken.per_sample for taken in (without, every)]
            whole = self._seconds(rung.at(size)) if room.covers(rung) else self._guess(rung, size)
            seconds = [self._plain_seconds(rung, size), whole]
            yield from self._partly(rung, size, 0, peaks, seconds, usable)

    def _partly(
        self, rung: Candidate, size: int, fewer: int, peaks: Sequence[float | None], seconds: Sequence[float | None],
        usable: float,
    ) -> Iterator[Partly]:  # fmt: skip
        """Yield a rung at a micro-batch with as many blocks as a line says; nothing where that is none, or all."""
        (low, high), (quick, slow) = peaks, seconds
        if low is None or high is None or quick is None or slow is None:
            return
        line = _Line(fewer, (low, high), (quick, slow))
        count = line.fewest(usable, self._blocks)
        if 0 < count < self._blocks:
            yield Partly(self._with(rung, count).at(size), line.at(count, self._blocks))

    def _sampled(self, rung: Candidate, least: int, most: int, samples: int = SAMPLED) -> Iterator[int]:
        """Yield useful micro-batches above `least` up to `most`, in equal ratios."""
        batches = self._context.batches(rung)
        size = batches.above(least)
        most = min(most, batches.limit)
        ratio = (most / size) ** (1 / (SAMPLED - 1)) if size is not None and size < most else 2.0
        while size is not None and size <= most and samples > 0:
            yield size
            samples -= 1
            size = batches.above(max(size, int(size * ratio) - 1))
