"""The timelines of traced rungs, and which of them prices a candidate."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial

from autotune.candidate import Candidate
from autotune.timeline.checkpointed import numbers_covered, with_checkpointed
from autotune.timeline.depth import NotAlike
from autotune.timeline.timeline import Timeline


class Timelines:
    """Timelines by the keys of rungs. Immutable but for what it remembers."""

    def __init__(self, by_key: Mapping[str, Timeline]) -> None:
        """Take timelines by `Candidate.rung().key()`; one that holds for a single micro-batch by `Candidate.key()`."""
        self.by_key = dict(by_key)
        self._exact = any(timeline.exact is not None for timeline in self.by_key.values())
        self._partly_checkpointed: dict[str, Timeline] = {}
        for key, timeline in self.by_key.items():
            if numbers_covered(timeline):
                self._partly_checkpointed.setdefault(_of_any_number(key), timeline)
        self._composed: dict[tuple[str, int], Timeline | None] = {}
        self._found: dict[Candidate, Timeline | None] = {}

    def and_more(self, timelines: Mapping[Candidate, Timeline]) -> Timelines:
        """Return these timelines and those of more rungs; what is composed goes on being of the first traced."""
        more = {
            candidate.key() if timeline.exact is not None else candidate.rung().key(): timeline
            for candidate, timeline in timelines.items()
        }
        result = Timelines({**self.by_key, **more})
        result._composed = self._composed
        return result

    def of(self, candidate: Candidate) -> Timeline | None:
        """Return the timeline that prices a candidate; None where none covers it.

        Rungs that differ in the allocator's options alone may share one. That of any number of checkpointed blocks is
        composed of one where some are and some are not.
        """
        # Where none holds for one micro-batch alone, what covers 2 covers all above.
        alike = candidate if self._exact or candidate.micro_batch <= 2 else candidate.at(2)
        if alike not in self._found:
            self._found[alike] = self._find(alike)
        return self._found[alike]

    def _find(self, candidate: Candidate) -> Timeline | None:
        keys = partial(self._keys, candidate)
        for key in keys():
            if key in self.by_key and self.by_key[key].covers(candidate.micro_batch):
                return self.by_key[key]
        if candidate.checkpointed_blocks != "all":
            for key in map(_of_any_number, keys()):
                composed = self._with_checkpointed(key, candidate.checkpointed_blocks)
                if composed is not None and composed.covers(candidate.micro_batch):
                    return composed
        return None

    def _keys(self, candidate: Candidate) -> Iterator[str]:
        """Yield by what a candidate's timeline may go, one after the other: most often the first one is there."""

        def of(other: Candidate) -> Iterator[str]:
            if self._exact:  # else none goes by a micro-batch
                yield other.key()
            yield other.rung().key()

        yield from of(candidate)
        plain = candidate.traced()
        yield from of(plain)
        yield from of(plain.model_copy(update={"expandable_segments": False}))

    def _with_checkpointed(self, key: str, count: int) -> Timeline | None:
        """Return the timeline of so many checkpointed blocks, made of one with another number; None without one."""
        traced = self._partly_checkpointed.get(key)
        if traced is None or count not in numbers_covered(traced):
            return None
        if (key, count) not in self._composed:
            try:
                self._composed[key, count] = with_checkpointed(traced, count)
            except NotAlike:  # each number has to be traced for itself
                self._composed[key, count] = None
        return self._composed[key, count]


def _of_any_number(key: str) -> str:
    """Return a candidate's key without its number of checkpointed blocks."""
    return re.sub(r"(?<=checkpointed_blocks=)[0-9]+", "any", key)
