"""What a recorded grid knows of its candidates: which fit, how fast each is, and which is the fastest. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from autotune.candidate import AXES, Candidate
from autotune.confidence import t_quantile
from autotune.devices.recorded_grid import GridEquals, GridHeader, GridPoint, RecordedGrid
from autotune.outcome import Ok, Oom
from autotune.search.context import SearchContext
from autotune.search.space import Space


def search_context(header: GridHeader) -> SearchContext:
    """Return what bounds a search of the grid's space, at its goal."""
    return SearchContext(
        space=Space.load(header.space, header.name), base=Candidate(), goal=header.goal,
        tokens_per_sample=header.facts.tokens_per_sample, budget=header.site.device.budget, limits=header.limits,
        seed=header.seed, site=header.site, model=header.facts, source=header.model,
    )  # fmt: skip


class Oracle:
    """The truth of a grid. Speeds are tokens per second at the global batch, the mean of all measurements."""

    def __init__(self, grid: RecordedGrid) -> None:
        self.grid = grid
        self.context = search_context(grid.header)

    @cached_property
    def speeds(self) -> dict[Candidate, float]:
        """Of every candidate that trained and left the headroom free, each time that it was measured."""
        return {
            one: self._speed(one)
            for one, point in self.grid.points.items()
            if all(
                isinstance(measured.outcome, Ok) and self.context.fits(measured.outcome.memory)
                for measured in (point, *self.grid.repeats.get(one, ()))
            )
        }

    @cached_property
    def best(self) -> Candidate:
        """The fastest; asserts that anything fits."""
        assert self.speeds, f"{self.grid.source}: nothing fits"
        repeated = {one: speed for one, speed in self.speeds.items() if one in self.grid.repeats}
        return max(repeated or self.speeds, key=self.speeds.__getitem__)

    @property
    def equals(self) -> frozenset[Candidate]:
        """The fastest, and what cannot be told from it."""
        found = self.grid.equals
        return frozenset({self.best, *(found.equals if found else ())})

    def share(self, candidate: Candidate | None) -> float:
        """Return a candidate's speed as a share of the fastest's: 1 for what cannot be told from it, 0 for none.

        What trained without the headroom counts with its speed too, so the share may be above 1.
        """
        if candidate is None:
            return 0.0
        if candidate in self.equals:
            return 1.0
        if not self.grid.samples(candidate):
            return 0.0
        return self._speed(candidate) / self.speeds[self.best]

    def plain(self) -> Candidate:
        """Return the rung with every axis at its first value, at micro-batch 1."""
        return self.context.space.plain(self.context.base)

    def plain_wins(self) -> bool:
        """Tell whether the fastest is on the plain rung, or cannot be told from one that is."""
        return any(one.rung() == self.plain() for one in self.equals)

    def oom_share(self) -> float:
        """Return which share of the trials ran out of memory."""
        points = self.grid.points.values()
        return sum(isinstance(point.outcome, Oom) for point in points) / max(1, len(points))

    def fastest(self, count: int) -> list[Candidate]:
        """Return the fastest by their first measurements, best first."""
        firsts = {
            one: _tokens_per_second(point, self.context)
            for one, point in self.grid.points.items()
            if isinstance(point.outcome, Ok) and self.context.fits(point.outcome.memory)
        }
        return sorted(firsts, key=lambda one: (-firsts[one], one.key()))[:count]

    def _speed(self, candidate: Candidate) -> float:
        """Return the mean of the rounds where there are any: the first of many is the fastest also by luck."""
        again = self.grid.repeats.get(candidate, ())
        measured = [point for point in again if isinstance(point.outcome, Ok)] or [
            self.grid.points[candidate]
        ]
        return statistics.fmean(_tokens_per_second(point, self.context) for point in measured)


def _tokens_per_second(point: GridPoint, context: SearchContext) -> float:
    assert isinstance(point.outcome, Ok)
    return target_speed(point.candidate, point.outcome, context)


def target_speed(candidate: Candidate, outcome: Ok, context: SearchContext) -> float:
    """Return tokens per second at the global batch; those beyond it, which accumulation adds, were not asked for."""
    assert outcome.timing is not None, "its speed was measured"
    accumulation = context.batches(candidate).accumulation(candidate.micro_batch)
    return accumulation.target / outcome.timing.global_step(accumulation.steps)


def rounds_of(grid: RecordedGrid, candidates: Iterable[Candidate]) -> dict[Candidate, tuple[float, ...]]:
    """Return the speed of each in each round; without those that did not train in one of them."""
    context = search_context(grid.header)
    found = {}
    for one in candidates:
        again = sorted(grid.repeats.get(one, ()), key=lambda point: point.round)
        if again and all(isinstance(point.outcome, Ok) for point in again):
            found[one] = tuple(_tokens_per_second(point, context) for point in again)
    return found


def compare(speeds: Mapping[Candidate, Sequence[float]]) -> GridEquals:
    """Tell which of several cannot be told from the fastest, from their speeds in the same rounds.

    Paired: of each round the logarithm of two speeds' ratio, so that a round in which the machine was slower counts the
    same for both. Told apart are two whose mean ratio's 95% interval (Student's t) leaves out 1.
    """
    assert speeds, "something was measured again"
    fastest = max(speeds, key=lambda one: (statistics.fmean(map(math.log, speeds[one])), one.key()))
    equals = tuple(one for one in speeds if one == fastest or not _slower(speeds[one], speeds[fastest]))
    return GridEquals(
        rounds=min(map(len, speeds.values())), fastest=fastest, equals=equals, compared=tuple(speeds)
    )


def _slower(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    mean, half = paired(theirs, ours)
    return mean > half


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the logarithms of two speeds' ratios of each round, and its 95% interval's half-width."""
    ratios = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    if len(ratios) < 2:
        return ratios[0], math.inf
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return statistics.fmean(ratios), t_quantile(len(ratios) - 1) * error


def told(candidate: Candidate) -> str:
    """Return a candidate by what is off its defaults, for tables."""
    plain = Candidate()
    changed = [f"{axis} {getattr(candidate, axis)}" for axis in AXES
               if getattr(candidate, axis) != getattr(plain, axis)]  # fmt: skip
    return f"{', '.join(changed) or 'plain'} x {candidate.micro_batch}"
