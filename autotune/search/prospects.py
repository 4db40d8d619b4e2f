"""What could be probed or traced next, with what is expected of each. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from autotune.candidate import Candidate
from autotune.memory.calibration import Z
from autotune.outcome import Ok
from autotune.search.comparison import MARGIN
from autotune.search.context import SearchContext
from autotune.search.incumbent import bound_of
from autotune.search.partial_checkpointing import PartialCheckpointing
from autotune.search.probe_cost import ProbeCost
from autotune.search.room import Room
from autotune.timing.speed_model import AtLeast, Expected, Observed, SpeedModel
from autotune.trial import History, Trial

COMBINED = 0.075
"""Standard deviation of the logarithm by which a combination's price differs from what its techniques do one by one.
Measured on whole ladders (benchmarks/search_regret.py), near the fastest: 0.04 to 0.07."""
BETWEEN = 0.03
"""The same of a number of checkpointed blocks, told from none and all: nearly a straight line. Assumed."""


class Prospect(NamedTuple):
    """A candidate that could be probed, or a rung that could be traced, with what is expected of it."""

    candidate: Candidate
    expected: Expected
    improvement: float
    """Expected, as a share of the best."""
    cost: float
    """Seconds that its probe takes; of a technique that is to be traced, what one takes at least."""
    traced: bool


class _Priced(NamedTuple):
    candidate: Candidate
    seconds: float
    """Of a global step, uncorrected."""
    traced: bool


class Prospects:
    """Compares candidates by predicted seconds of a global step, corrected by what every probe of the run showed."""

    def __init__(self, history: History, context: SearchContext, room: Room, simulated: bool) -> None:
        """Take a search at one moment. What is `simulated` comes out as priced, and its probes take no time."""
        self._context = context
        self._ladder = context.ladder
        self._room = room
        self._simulated = simulated
        self._cost = ProbeCost(history)
        self._partial = PartialCheckpointing(context, room, context.seconds, self._guess)
        seen = [one for trial in history if (one := self._observed(trial))]
        bounds = [bound for trial in history if (bound := self._bounded(trial))]
        self._model = SpeedModel(seen, bounds)
        # Of what has no price yet: how far off prices are says nothing of it.
        self._untraced_model = SpeedModel(seen, bounds, scales=(1.0,))

    def rungs(self, best: Candidate) -> dict[Candidate, None]:
        """Return the legal rungs that may still win."""
        return {
            rung: None
            for rung in self._ladder.rungs
            if rung not in self._context.refused and self._ladder.competes(rung, best)
        }

    def probe_seconds(self, candidate: Candidate, global_step: float) -> float:
        """Return what a probe is expected to take whose global step takes so many seconds."""
        if self._simulated:
            return 0.0
        steps = self._context.batches(candidate).steps(candidate.micro_batch)
        return self._cost.seconds(candidate, global_step, steps)

    def to_probe(self, rungs: dict[Candidate, None], best: float) -> list[Prospect]:
        """Return every candidate of a rung that is priced, or never will be, and was not tried.

        What may not fit is expected to improve by as much less.
        """
        room = self._room
        traced = [rung for rung in rungs if room.covers(rung) and not room.is_closed(rung, 1)]
        # Which micro-batches fit takes longest to tell, and only matters where the rung could win with any.
        largest = [rung.at(room.largest(rung)) for rung in traced]
        hopeful = [
            prospect.candidate.rung()
            for prospect in self._judged(self._priced(largest), best)
            if prospect.improvement >= MARGIN
        ]
        fitting = [rung.at(size) for rung in hopeful for size in [*room.sure(rung), *room.likely(rung)]]
        fitting += [one for rung in traced for one in self._partial.fitting(rung)]
        new = [candidate for candidate in fitting if not room.is_tried(candidate)]
        found = self._judged([*self._priced(new), *self._unpriced(rungs)], best)
        return [one._replace(improvement=one.improvement * room.fit(one.candidate)) for one in found]

    def to_trace(self, rungs: dict[Candidate, None], best: float, leader: Prospect | None) -> list[Prospect]:
        """Return what may come of every rung that can still be traced and whose parts are known, by micro-batch.

        That is the largest micro-batch that can be hoped for, and of a combination also halves of it, whose probes are
        shorter. The parts of a rung have one of its techniques each, some beside those that it is priced over. They are
        traced before it, so that most combinations never are, and what a probe of them takes besides steps is all that
        counts against them: each tells of many rungs. While there is a `leader`, which would be probed next, a
        combination has to come before it: tracing it shows no more than how its techniques combine, and what a probe of
        the leader shows is of use for both.
        """
        parts: list[_Priced] = []
        combined: list[_Priced] = []
        for rung in rungs:
            if self._room.is_known(rung) or self._room.is_closed(rung, 1):
                continue
            before = self._ladder.parts(rung)
            if rung not in before and not all(self._room.is_known(part) for part in before):
                continue
            sizes = self._room.hoped_and_halves(rung)
            if not sizes:
                continue
            # Without a guess, the reference itself is to be traced first.
            is_part = rung in before or self._guess(rung, sizes[0]) is None
            if is_part or self._simulated:
                sizes = sizes[:1]
            guesses = {size: self._guess(rung, size) or best for size in sizes}
            some = self._partial.hoped(rung)
            if some is not None and some.seconds < guesses[sizes[0]]:
                size = some.candidate.micro_batch
                guesses[size] = min(some.seconds, guesses.get(size, math.inf))
            kind = parts if is_part else combined
            kind.extend(_Priced(rung.at(size), seconds, False) for size, seconds in guesses.items())
        to_beat = best if leader is None else leader.expected.seconds
        # What is simulated is probed as priced.
        spreads = None if leader is None and not self._simulated else [COMBINED] * len(combined)
        alone = self._untraced_model.expect([one.candidate for one in parts], [one.seconds for one in parts])
        judged = self._judged(parts, best, [one.spread for one in alone])
        return [
            *(one._replace(cost=self._least_cost(one)) for one in judged),
            *self._judged(combined, to_beat, spreads),
            *self._partly(rungs, to_beat),
        ]

    def _least_cost(self, one: Prospect) -> float:
        """Return the seconds that a probe of any micro-batch takes beside its steps."""
        return 0.0 if self._simulated else self._cost.start(one.candidate.compile)

    def _partly(self, rungs: dict[Candidate, None], to_beat: float) -> list[Prospect]:
        """Return what traced rungs with checkpointed blocks ask for before a number of these can be chosen."""
        quickest = [
            _Priced(rung.at(self._room.largest(rung)), seconds, False)
            for rung in rungs
            if self._context.takes_numbers(rung)
            and self._room.covers(rung)
            and not self._room.is_closed(rung, 1)
            if (seconds := self._partial.quickest(rung)) is not None
        ]
        hopeful = [
            one.candidate.rung()
            for one in self._judged(quickest, to_beat, [BETWEEN] * len(quickest))
            if one.improvement >= MARGIN
        ]
        partly = [
            _Priced(one.candidate, one.seconds, False)
            for rung in hopeful
            for one in self._partial.to_trace(rung)
        ]
        return self._judged(partly, to_beat, [BETWEEN] * len(partly))

    def _judged(
        self, priced: Sequence[_Priced], best: float, spreads: Sequence[float] | None = None
    ) -> list[Prospect]:
        """Return what is expected of candidates, beside a best of so many seconds.

        A technique that only saves memory makes no step faster. So no candidate improves more than its plain one would,
        at the same micro-batch and whether that fits or not. `spreads` replace what is uncertain of each.
        """
        plain = [self._ladder.plain(one.candidate) for one in priced]
        raws = [self._context.seconds(one) or given.seconds for one, given in zip(plain, priced, strict=True)]
        bounds = self._model.expect(plain, raws)
        expected = self._model.expect([one.candidate for one in priced], [one.seconds for one in priced])
        if spreads is not None:
            bounds = [one._replace(spread=spread) for one, spread in zip(bounds, spreads, strict=True)]
            expected = [one._replace(spread=spread) for one, spread in zip(expected, spreads, strict=True)]
        elif self._simulated:
            # What is simulated comes out as priced: only what was not priced yet is uncertain.
            expected = [
                Expected(one.seconds, 0.0) if one.traced else guessed
                for one, guessed in zip(priced, expected, strict=True)
            ]
        return [
            Prospect(
                one.candidate, seconds, min(seconds.improvement(best), bound.improvement(best)),
                self.probe_seconds(one.candidate, seconds.seconds), one.traced,
            )
            for one, seconds, bound in zip(priced, expected, bounds, strict=True)
        ]  # fmt: skip

    def _priced(self, candidates: Sequence[Candidate]) -> list[_Priced]:
        """Return those of traced candidates that have a price."""
        return [
            _Priced(one, seconds, True)
            for one in candidates
            if (seconds := self._context.seconds(one)) is not None
        ]

    def _unpriced(self, rungs: dict[Candidate, None]) -> Iterator[_Priced]:
        """Yield each rung that cannot be traced where the same rung without what cannot be traced fits.

        None on a simulated device, which has nothing but traces.
        """
        if self._simulated:
            return
        for rung in rungs:
            if rung not in self._context.untraceable or self._room.is_closed(rung, 1):
                continue
            twin = self._ladder.without(rung, lambda part: part in self._context.untraceable)
            if not self._room.covers(twin):
                continue
            for size in self._room.sure(twin):
                one, seconds = rung.at(size), self._guess(rung, size)
                if seconds is not None and not (self._room.is_closed(rung, size) or self._room.is_tried(one)):
                    yield _Priced(one, seconds, False)

    def _guess(self, rung: Candidate, size: int) -> float | None:
        """Return the seconds of a global step of a rung without a price, by its techniques one by one."""
        return self._ladder.guess(
            rung, lambda part: self._context.seconds(part.at(size)) if self._room.covers(part) else None
        )

    def _observed(self, trial: Trial) -> Observed | None:
        if not isinstance(trial.outcome, Ok) or (timing := trial.outcome.timing) is None:
            return None
        raw = self._context.seconds(trial.candidate)
        if raw is None:
            return None
        steps = self._context.batches(trial.candidate).steps(trial.candidate.micro_batch)
        seconds = timing.global_step(steps)
        return Observed(trial.candidate, raw, seconds, timing.interval(steps) / seconds / Z)

    def _bounded(self, trial: Trial) -> AtLeast | None:
        """Return what a probe that ended early took at least."""
        if (bound := bound_of(trial, self._context)) is None:
            return None
        raw = self._context.seconds(trial.candidate)
        return None if raw is None else AtLeast(trial.candidate, raw, bound.seconds)
