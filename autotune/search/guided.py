"""Guided search: price the ladder, probe what is expected to win, and stop where nothing can beat the best any more.

A pure function of history and context, like every strategy. Until something fits, it walks the space's decision graph
(`graph_walk`), so that the descent is the documented one. From then on every rung of the space competes:

- A rung that was traced is priced at the micro-batches that surely fit: roofline seconds of a global step, corrected by
  what every probe of the run showed (`timing.speed_model`).
- A rung that was not is guessed from the techniques that it is made of, and as if memory did not matter, so a guess
  is optimistic. Those that could win are traced, in batches, the simplest first.
- A candidate is worth a probe where its expected improvement on the best is at least `MARGIN`, and would save the
  probe's own time in as much training as the run is for (`Limits.training_time`). Of these the one is probed next with
  which probe and training take least together. Where there is none, and no guess is as good, the search is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autotune.candidate import Candidate
from autotune.memory.calibration import Z
from autotune.memory.predictor import Predictor
from autotune.outcome import Ok, Oom
from autotune.search.context import SearchContext
from autotune.search.enumeration import Tried, closed_from, tried_sizes
from autotune.search.graph_walk import GraphWalk
from autotune.search.incumbent import bound_of
from autotune.search.ladder import Taken
from autotune.search.probe_cost import ProbeCost
from autotune.search.selection import Score, rank
from autotune.search.strategy import Decision, Done, Learn, Try
from autotune.techniques.families import title as title_of
from autotune.timing.speed_model import AtLeast, Expected, Observed, SpeedModel
from autotune.trial import History, Trial
from autotune.units import format_bytes, format_duration

MARGIN = 0.02
"""Expected improvement, as a share of the best global step's time, below which nothing more is probed."""
BATCH = 8
"""Rungs that are traced at a time: what they show may make the others needless."""
COMBINED = 0.03
"""Standard deviation of the logarithm by which a combination's price differs from the product of what its techniques do
one by one. Assumed."""
SLACK = 0.1
"""Share of the memory by which a combination may take less than its techniques one by one let expect. Assumed."""
SURE = 0.975
"""Probability of fitting from which on a candidate is taken to fit surely."""
SIZES = 3
"""Micro-batches of a rung that compete: so many of the largest that surely fit, and halves."""


class Guided:
    """Prices the whole space by the memory model and the roofline, and probes what is expected to win."""

    name = "guided"
    prices = True

    def propose(self, history: History, context: SearchContext) -> Decision:
        """Return what to trace or to probe next, or that nothing is left that could win.

        Without a memory model there is nothing to price by: then the decision graph is walked.
        """
        walked = GraphWalk().propose(history, context)
        if context.predictor is None or context.speed is None:
            return walked
        simulated = context.site is not None and context.site.device.simulated
        # What is simulated comes out as priced: there is nothing to learn.
        known = context.predictor if simulated else context.predictor.learned(history, context.budget)
        search = _Search(history, context, known, simulated)
        if search.best is None:
            return search.first(walked)
        if not known.covers(search.best.trial.candidate):
            return walked  # nothing can be compared with it but by probes
        return search.improve(search.best, walked)


@dataclass(frozen=True)
class _Offer:
    """A candidate that could be probed, with what is expected of it."""

    candidate: Candidate
    expected: Expected
    improvement: float
    """Expected, as a share of the best."""
    cost: float
    """Seconds that its probe takes."""
    traced: bool


class _Search:
    def __init__(
        self, history: History, context: SearchContext, predictor: Predictor, simulated: bool
    ) -> None:
        assert context.speed is not None
        self._context = context
        self._predictor = predictor
        self._speed = context.speed
        self._ladder = context.ladder
        self._simulated = simulated
        self._cost = ProbeCost(history)
        self._training = context.limits.training_time
        self._bytes: dict[Candidate, Taken | None] = {}
        self._tried: Tried = tried_sizes(history)
        self._overrun = any(
            isinstance(trial.outcome, Oom)
            or (isinstance(trial.outcome, Ok) and not context.fits(trial.outcome.memory))
            for trial in history
        )
        self.best = min(rank(history, context), key=lambda score: score.seconds, default=None)
        """The fastest so far, of what leaves the headroom free."""
        self._model = SpeedModel(
            [seen for trial in history if (seen := self._observed(trial))],
            [bound for trial in history if (bound := self._bounded(trial))],
        )

    def first(self, walked: Try | Done) -> Decision:
        """Return what to try while nothing fits: what the graph proposes, or what surely fits where that may not.

        That is the first rung of the graph which does, so that the dearest techniques still come last. What may fit
        competes with it afterwards.
        """
        if not isinstance(walked, Try) or self._fit(walked.candidate) >= SURE:
            return self._raised(walked)
        rungs = [
            rung
            for rung in self._context.space.rungs(walked.candidate)
            if self._ladder.competes(rung, walked.candidate)
            and rung not in self._tried
            and rung not in self._context.refused
            and self._context.is_open(rung)
        ]
        if unknown := [rung for rung in rungs if not self._is_known(rung)]:
            return Learn(tuple(unknown), f"{_named(walked.candidate)} may not fit")
        for rung in rungs:
            size = self._context.batches(rung).above(0)
            if size is not None and self._covers(rung) and self._fit(rung.at(size)) >= SURE:
                why = f"{_named(walked.candidate)} may not fit, and this should"
                return self._raised(Try(rung.at(size), "guided", why, walked.path, walked.skipped))
        return self._raised(walked)

    def _raised(self, walked: Try | Done) -> Decision:
        """Return a candidate at the largest micro-batch that surely fits.

        One probe there says more than one at the smallest: it may win.
        """
        if not isinstance(walked, Try):
            return walked
        candidate = walked.candidate
        tried = self._tried.get(candidate.rung(), {})
        sizes = [
            size
            for size in self._sizes(candidate.rung())
            if size > candidate.micro_batch and size not in tried
        ]
        priced = {size: seconds for size in sizes if (seconds := self._raw(candidate.at(size))) is not None}
        if not priced:
            return walked
        fastest = min(priced.values())
        size = min(
            priced, key=lambda size: self._total(candidate.at(size), priced[size] / fastest, priced[size])
        )
        bounds = self._predictor.bounds(candidate.at(size))
        assert bounds is not None
        why = f"{walked.why}; micro-batch {size} should fit, with {format_bytes(round(bounds.mean))}"
        return Try(candidate.at(size), walked.node, why, walked.path, walked.skipped)

    def improve(self, best: Score, walked: Try | Done) -> Decision:
        """Return what is expected to improve on the best: a candidate to probe, or rungs to trace first."""
        rungs = self._rungs(best.trial.candidate)
        offers = self._offers(rungs, best.seconds)
        hopeful = [offer for offer in offers if self._is_worthwhile(offer)]
        leader = min(hopeful, key=lambda offer: self._order(offer, best.seconds), default=None)
        guesses = self._guesses(rungs, best.seconds, leader)
        wanted = [offer for offer in guesses if self._is_worthwhile(offer)]
        wanted.sort(key=lambda offer: -offer.improvement)
        if wanted:
            why = f"{len(wanted)} rungs could be faster than {_named(best.trial.candidate)}"
            return Learn(tuple(offer.candidate for offer in wanted[:BATCH]), why)
        if leader is not None:
            ahead = len({offer.candidate.rung() for offer in hopeful})
            why = self._why(leader, best)
            return Try(leader.candidate, "guided", why, walked.path, walked.skipped, ahead)
        return Done(self._end(offers, best), "settled", walked.path, walked.skipped)

    def _is_worthwhile(self, offer: _Offer) -> bool:
        return offer.improvement >= max(MARGIN, offer.cost / self._training)

    def _order(self, offer: _Offer, best: float) -> tuple[int, int, float]:
        """Put first with what probe and training take least, and of what is as good within 1% the fewest techniques."""
        total = offer.expected.seconds / best * self._training + offer.cost
        rounded = round(100 * math.log(total / self._training))
        return rounded, len(self._ladder.differing(offer.candidate.rung())), total

    def _total(self, candidate: Candidate, slower: float, seconds: float) -> float:
        """Return the time of training that is slower by a factor, with that of the probe at `seconds` a global step."""
        return slower * self._training + self._probe_seconds(candidate, seconds)

    def _probe_seconds(self, candidate: Candidate, seconds: float) -> float:
        if self._simulated:
            return 0.0
        batches = self._context.batches(candidate)
        return self._cost.seconds(candidate, seconds, batches.accumulation(candidate.micro_batch).steps)

    def _rungs(self, best: Candidate) -> dict[Candidate, None]:
        """Return the legal rungs that may still win."""
        return {
            rung: None
            for rung in self._ladder.rungs
            if rung not in self._context.refused and self._ladder.competes(rung, best)
        }

    def _offers(self, rungs: dict[Candidate, None], best: float) -> list[_Offer]:
        """Return every candidate of a rung that is priced, or never will be, and was not tried."""
        traced = [rung for rung in rungs if self._covers(rung) and not self._is_closed(rung, 1)]
        # Which micro-batches fit takes longest to tell, and only matters where the rung could win with any.
        largest = [(rung, raw) for rung in traced if (raw := self._at(rung, self._largest(rung))) is not None]
        hopeful = [
            offer.candidate.rung()
            for offer in self._judged(
                [(rung.at(self._largest(rung)), raw, True) for rung, raw in largest], best
            )
            if offer.improvement >= MARGIN
        ]
        candidates = [
            rung.at(size)
            for rung in hopeful
            for size in [*self._sizes(rung), *self._bold(rung)]
            if size not in self._tried.get(rung, {})
        ]
        known = [(one, raw, True) for one in candidates if (raw := self._raw(one)) is not None]
        offers = self._judged([*known, *self._unpriced(rungs)], best)
        return [replace(one, improvement=one.improvement * self._fit(one.candidate)) for one in offers]

    def _judged(
        self, priced: Sequence[tuple[Candidate, float, bool]], best: float, spread: float | None = None
    ) -> list[_Offer]:
        """Return what is expected of candidates whose uncorrected seconds are given, and whether they were traced.

        A technique that only saves memory makes no step faster. So no candidate improves more than its plain one would,
        at the same micro-batch and whether that fits or not. `spread` replaces what is uncertain of each.
        """
        plain = [self._ladder.plain(one.rung()).at(one.micro_batch) for one, _, _ in priced]
        raws = [self._raw(one) for one in plain]
        bounds = self._model.expect(
            plain, [raw or given for raw, (_, given, _) in zip(raws, priced, strict=True)]
        )
        expected = self._model.expect([one for one, _, _ in priced], [raw for _, raw, _ in priced])
        if spread is not None:
            bounds = [Expected(seconds, spread) for seconds, _ in bounds]
            expected = [Expected(seconds, spread) for seconds, _ in expected]
        elif self._simulated:
            # What is simulated comes out as priced: only what was not priced yet is uncertain.
            expected = [
                Expected(raw, 0.0) if traced else guessed
                for (_, raw, traced), guessed in zip(priced, expected, strict=True)
            ]
        return [
            _Offer(
                one,
                seconds,
                min(seconds.improvement(best), bound.improvement(best)),
                self._probe_seconds(one, seconds.seconds),
                traced,
            )
            for (one, _, traced), seconds, bound in zip(priced, expected, bounds, strict=True)
        ]

    def _guesses(self, rungs: dict[Candidate, None], best: float, leader: _Offer | None) -> list[_Offer]:
        """Return every rung that can still be traced and whose parts are known, as fast as it may be.

        That is at the largest micro-batch that can be hoped for. Its parts are the rungs that differ from the reference
        by one of its techniques; these are traced before it, so that most combinations never are. While there is a
        leader, a combination has to come before it: tracing it shows no more than how its techniques combine, and what
        a probe of the leader shows is of use for both.
        """
        uncertain: list[tuple[Candidate, float, bool]] = []
        combined: list[tuple[Candidate, float, bool]] = []
        for rung in rungs:
            if self._is_known(rung) or self._is_closed(rung, 1):
                continue
            parts = self._ladder.parts(rung)
            if not all(self._is_known(part) for part in parts if part != rung):
                continue
            size = self._hoped(rung)
            if size == 0:
                continue
            seconds = self._ladder.guess(rung, lambda one, size=size: self._at(one, size))  # type: ignore[misc]
            # Without one, the reference itself is to be traced first.
            guess = (rung.at(size), best if seconds is None else seconds, False)
            (uncertain if leader is None or seconds is None or rung in parts else combined).append(guess)
        offers = self._judged(uncertain, best)
        if leader is not None:
            offers += self._judged(combined, leader.expected.seconds, COMBINED)
        # A smaller micro-batch may be as fast, so only what any probe of it takes counts against it.
        return [
            replace(offer, candidate=rung, cost=0.0 if self._simulated else self._cost.start(rung.compile))
            for offer in offers
            for rung in [offer.candidate.rung()]
        ]

    def _unpriced(self, rungs: dict[Candidate, None]) -> Iterator[tuple[Candidate, float, bool]]:
        """Yield each rung that cannot be traced where the same rung without what cannot be traced fits.

        None on a simulated device, which has nothing but traces.
        """
        if self._simulated:
            return
        for rung in rungs:
            if rung not in self._context.untraceable or self._is_closed(rung, 1):
                continue
            twin = self._ladder.without(rung, lambda part: part in self._context.untraceable)
            if not self._covers(twin):
                continue
            tried = self._tried.get(rung, {})
            for size in self._sizes(twin):
                raw = self._ladder.guess(rung, lambda one, size=size: self._raw(one.at(size)))  # type: ignore[misc]
                if not self._is_closed(rung, size) and size not in tried and raw is not None:
                    yield rung.at(size), raw, False

    def _at(self, rung: Candidate, size: int) -> float | None:
        """Return the predicted seconds of a global step of a traced rung at a micro-batch, whether or not that fits."""
        return self._raw(rung.at(size)) if self._covers(rung) else None

    def _largest(self, rung: Candidate) -> int:
        """Return the largest micro-batch that the goal has use for."""
        batches = self._context.batches(rung)
        return batches.up_to(0, batches.limit) or 1

    def _hoped(self, rung: Candidate) -> int:
        """Return the largest useful micro-batch that a rung may fit with, which is not traced yet.

        0 where there is no hope of any.
        """
        size = self._ladder.guess_size(rung, (1 + SLACK) * self._context.usable, self._taken)
        return self._largest(rung) if size is None else self._context.batches(rung).up_to(0, size) or 0

    def _taken(self, rung: Candidate) -> Taken | None:
        """Return what a traced rung takes at large micro-batches."""
        if rung not in self._bytes:
            self._bytes[rung] = self._measure(rung) if self._covers(rung) else None
        return self._bytes[rung]

    def _measure(self, rung: Candidate) -> Taken | None:
        large = max(2, self._largest(rung))
        half, whole = (self._predictor.bounds(rung.at(size)) for size in (large // 2, large))
        if half is None or whole is None:
            return None
        per_sample = max(1.0, (whole.mean - half.mean) / (large - large // 2))
        return Taken(whole.mean - large * per_sample, per_sample)

    def _sizes(self, rung: Candidate) -> list[int]:
        """Return useful micro-batches of a traced rung that surely fit and did not fail, largest first.

        Some of the largest, and then each half the one before: where more samples are hardly faster, their probe is
        only longer.
        """
        batches = self._context.batches(rung)
        limit = self._limit(rung)
        bound: Literal["mean", "high"] = "mean" if self._simulated else "high"
        sure = self._predictor.largest(rung, self._context.usable, limit, bound) or 0
        sizes: list[int] = []
        while len(sizes) < SIZES and (size := batches.up_to(0, sure)) is not None:
            sizes.append(size)
            sure = size - 1
        while sizes and (size := batches.up_to(0, sizes[-1] // 2)) is not None:
            sizes.append(size)
        return sizes

    def _bold(self, rung: Candidate) -> list[int]:
        """Return the largest useful micro-batch that is more likely to fit than not, where it does not surely.

        None once something has run out of memory: one such probe a search is what that may cost.
        """
        if self._simulated or self._overrun:
            return []
        likely = self._predictor.largest(rung, self._context.usable, self._limit(rung), "mean") or 0
        size = self._context.batches(rung).up_to(0, likely)
        return [] if size is None or self._fit(rung.at(size)) >= SURE else [size]

    def _limit(self, rung: Candidate) -> int:
        """Return the largest micro-batch of a rung that nothing forbids so far."""
        limit = self._context.batches(rung).limit
        end = closed_from(rung, self._tried, self._context)
        return limit if end is None else min(limit, end - 1)

    def _fit(self, candidate: Candidate) -> float:
        """Return how probable it is that a candidate fits; 1 where nothing is predicted of it."""
        bounds = None if self._simulated else self._predictor.bounds(candidate)
        if bounds is None:
            return 1.0
        deviation = (bounds.high - bounds.mean) / Z
        free = self._context.usable - bounds.mean
        if deviation <= 0:
            return float(free >= 0)
        return (1 + math.erf(free / deviation / math.sqrt(2))) / 2

    def _covers(self, rung: Candidate) -> bool:
        return self._predictor.covers(rung)

    def _is_known(self, rung: Candidate) -> bool:
        """Tell whether tracing a rung would teach nothing: that is done, or cannot be."""
        return self._covers(rung) or rung in self._context.untraceable

    def _is_closed(self, rung: Candidate, size: int) -> bool:
        """Tell whether what a rung came to forbids this micro-batch."""
        end = closed_from(rung, self._tried, self._context)
        return end is not None and size >= end

    def _raw(self, candidate: Candidate) -> float | None:
        """Return the uncorrected seconds of a global step, or None."""
        timing = self._speed.timing(candidate)
        batches = self._context.batches(candidate)
        if timing is None or not batches.allows(candidate.micro_batch):
            return None
        return timing.global_step(batches.accumulation(candidate.micro_batch).steps)

    def _observed(self, trial: Trial) -> Observed | None:
        if not isinstance(trial.outcome, Ok) or (timing := trial.outcome.timing) is None:
            return None
        raw = self._raw(trial.candidate)
        if raw is None:
            return None
        steps = self._context.batches(trial.candidate).accumulation(trial.candidate.micro_batch).steps
        seconds = timing.global_step(steps)
        return Observed(trial.candidate, raw, seconds, timing.interval(steps) / seconds / Z)

    def _bounded(self, trial: Trial) -> AtLeast | None:
        """Return what a probe that ended early took at least."""
        if (bound := bound_of(trial, self._context)) is None:
            return None
        raw = self._raw(trial.candidate)
        return None if raw is None else AtLeast(trial.candidate, raw, bound.seconds)

    def _why(self, offer: _Offer, best: Score) -> str:
        faster = 1 - offer.expected.seconds / best.seconds
        spread = Z * offer.expected.spread
        source = "predicted" if offer.traced else "guessed, for it cannot be traced,"
        said = f"{faster:.0%} faster" if faster >= 0 else f"{-faster:.0%} slower"
        return f"{source} {said} (± {spread:.0%}) than {_named(best.trial.candidate)}"

    def _end(self, offers: Sequence[_Offer], best: Score) -> str:
        name = _named(best.trial.candidate)
        following = max(offers, key=lambda offer: offer.improvement, default=None)
        if following is None:
            return f"nothing else is expected to be {MARGIN:.0%} faster than {name}"
        behind = following.expected.seconds / best.seconds - 1
        next_one = f"{_named(following.candidate)}, predicted {behind:+.1%} in time"
        if following.improvement < MARGIN:
            return f"nothing else is expected to be {MARGIN:.0%} faster than {name}; next comes {next_one}"
        return (
            f"what may still be faster than {name} would not save its probe's time in "
            f"{format_duration(self._training)} of training (--training-time); next comes {next_one}, "
            f"in a probe of {format_duration(following.cost)}"
        )


def _named(candidate: Candidate) -> str:
    return f"{title_of(candidate)} at micro-batch {candidate.micro_batch}"
