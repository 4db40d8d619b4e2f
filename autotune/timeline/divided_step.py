"""A micro-step divided into the passes of a model's blocks and what is around these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from autotune.timeline.depth import NotAlike, Pass, Span, Spans
from autotune.timeline.step_events import Slots, StepEvents

Key = tuple[Pass, int]
"""A block's pass."""


class DividedStep:
    """A micro-step, divided into its blocks' passes and the stretches before, between and behind these."""

    def __init__(self, slots: Slots, step: StepEvents, spans: Spans) -> None:
        """Raise NotAlike where not every block has both passes."""
        if not spans.forward or len(spans.backward) != len(spans.forward):
            raise NotAlike("not every block has both passes")
        self._slots, self.step = slots, step
        self.passes: dict[Key, Span] = {}
        """In the order of time."""
        self.within: dict[int, Key] = {}
        """Of each slot that a block makes, in which pass."""
        for during, number, (start, end) in spans.passes():
            self.passes[during, number] = start, end
            self.within |= dict.fromkeys(made_in(step.events[start:end]), (during, number))
        lasts: tuple[Key, Key] = ("forward", len(spans.forward) - 1), ("backward", 0)
        for last in lasts:  # what is let go of right behind it is the blocks' own affair
            start, end = self.passes[last]
            while end < len(step.events) and ~step.events[end] in self.within:
                end += 1
            self.passes[last] = start, end
        self.beside = set(made_in(step.events)) - set(self.within)
        """The slots that are made beside blocks."""

    def stretches(self) -> list[Span]:
        """Return where it is before, between and behind the blocks' passes. Raises NotAlike where they meet."""
        spans = list(self.passes.values())
        half = len(spans) // 2
        found = [
            (0, spans[0][0]), (spans[half - 1][1], spans[half][0]), (spans[-1][1], len(self.step.events)),
        ]  # fmt: skip
        if any(start > end for start, end in found):
            raise NotAlike("blocks are not apart from what is around them")
        return found

    def size(self, slot: int) -> tuple[int, int, int]:
        """Return how large a slot is, and where."""
        return self._slots.size(slot)

    def rows(self, span: Span) -> list[ReleaseGroup]:
        """Return a stretch as rows of releases, whose order does not matter, and what is made behind each."""
        return list(_rows(self.step.events[slice(*span)]))

    def released_when_forward_ends(self) -> set[int]:
        """Return what is released right before backward begins: autocast's copies, if it kept them."""
        found: set[int] = set()
        for position, phase in self.step.marks:
            if phase == "backward":
                while position and self.step.events[position - 1] < 0:
                    position -= 1
                    found.add(~self.step.events[position])
        return found

    def arrivals(self, slots: Iterable[int]) -> list[tuple[int, int, bool]]:
        """Return which of the slots become gradients of which parameters, and whether they were copied."""
        wanted = set(slots)
        return sorted(
            (entry.slot, entry.parameter, entry.copied)
            for entry in self.step.accumulated
            if entry.slot in wanted
        )


class ReleaseGroup(NamedTuple):
    """What is released one after the other, in no certain order, and what is made behind that."""

    released: list[int]
    made: int | None
    """None behind the last row."""


def made_in(events: Iterable[int]) -> list[int]:
    """Return what is made, in order."""
    return [event for event in events if event >= 0]


def _rows(events: Sequence[int]) -> Iterator[ReleaseGroup]:
    row: list[int] = []
    for event in events:
        if event < 0:
            row.append(~event)
        else:
            yield ReleaseGroup(row, event)
            row = []
    yield ReleaseGroup(row, None)
