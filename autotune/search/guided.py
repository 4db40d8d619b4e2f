"""Guided search: price the ladder, probe what is expected to win, and stop where nothing can beat the best any more.

A pure function of history and context, like every strategy. Until something fits, it walks the space's decision graph
(`graph_walk`), so that the descent is the documented one, but for what may not fit, which comes after what surely does.
Where nothing on the graph fits, it looks for what does among all rungs of the space. From then on every one competes:

- A rung that was traced is priced at the micro-batches that surely fit: roofline seconds of a global step, corrected by
  what every probe of the run showed (`timing.speed_model`).
- A rung that was not is guessed from the techniques that it is made of, at the largest micro-batch that these let hope
  for, so a guess is optimistic. Those that could come before what would be probed next are traced, in batches, the
  simplest first.
- A candidate is worth a probe where its expected improvement on the best is at least `MARGIN`, and would save the
  probe's own time in as much training as the run is for (`Limits.training_time`). Of these the one is probed next with
  which probe and training take least together. Where there is none, and no guess is as good, the search is over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.candidate import Candidate
from autotune.memory.calibration import Z
from autotune.memory.predictor import Predictor
from autotune.search.comparison import MARGIN
from autotune.search.context import SearchContext
from autotune.search.graph_walk import GraphWalk
from autotune.search.prospects import Prospect, Prospects
from autotune.search.room import SURE, Room
from autotune.search.selection import Score, rank
from autotune.search.strategy import TRACED_AT_A_TIME, Decision, Done, TraceFirst, Try
from autotune.techniques.families import title as title_of
from autotune.trial import History
from autotune.units import format_bytes, format_duration

EVEN = 0.5
"""Probability of fitting below which a candidate rather does not."""
NEVER = 1e9
"""Seconds of a global step that whatever fits is below: nothing does yet."""


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
        known = context.predictor if simulated else context.predictor.calibrated(history, context.budget)
        search = _Search(history, context, known, simulated)
        best = min(rank(history, context), key=lambda score: score.seconds, default=None)
        if best is None:
            return search.first(walked)
        if not known.covers(best.trial.candidate):
            return walked  # nothing can be compared with it but by probes
        return search.improve(best, walked)


class _Search:
    def __init__(
        self, history: History, context: SearchContext, predictor: Predictor, simulated: bool
    ) -> None:
        self._context = context
        self._predictor = predictor
        self._room = Room(history, context, predictor, simulated)
        self._prospects = Prospects(history, context, self._room, simulated)
        self._training = context.limits.training_time

    def first(self, walked: Try | Done) -> Decision:
        """Return what to try while nothing fits: what the graph proposes, or what surely fits where that may not.

        That is the first rung of the graph which does, so that the dearest techniques still come last. What may fit
        competes with it afterwards. Where nothing on the graph does, it is what is fastest of the whole space.
        """
        if isinstance(walked, Done):
            short = next((step.candidate for step in walked.path if step.edge.startswith("oom")), None)
            return (None if short is None else self._anywhere(short, walked)) or walked
        fit = self._room.fit(walked.candidate)
        if fit >= SURE:
            return self._raised(walked)
        rungs = [
            rung
            for rung in self._context.space.rungs(walked.candidate)
            if self._context.ladder.competes(rung, walked.candidate)
            and rung not in self._room.tried
            and rung not in self._context.refused
            and self._context.is_open(rung)
        ]
        if unknown := [rung for rung in rungs if not self._room.is_known(rung)]:
            why = f"{_named(walked.candidate)} may not fit"
            return TraceFirst(tuple(unknown), why, walked.path, walked.skipped)
        for rung in rungs:
            size = self._context.batches(rung).above(0)
            if size is not None and self._room.covers(rung) and self._room.fit(rung.at(size)) >= SURE:
                why = f"{_named(walked.candidate)} may not fit, and this should"
                return self._raised(Try(rung.at(size), "guided", why, walked.path, walked.skipped))
        return (self._anywhere(walked.candidate, walked) if fit < EVEN else None) or self._raised(walked)

    def _anywhere(self, like: Candidate, walked: Try | Done) -> Decision | None:
        """Return what to trace or to probe where nothing on the graph fits; None where nothing of the space may.

        That competes with `like`, which did not.
        """
        rungs = self._prospects.rungs(like)
        found = [
            one for one in self._prospects.to_probe(rungs, NEVER) if self._room.fit(one.candidate) >= EVEN
        ]
        fastest = min((one.expected.seconds for one in found), default=NEVER)
        leader = min(found, key=lambda one: self._order(one, fastest), default=None)
        guesses = self._prospects.to_trace(rungs, NEVER, leader)
        hopeful = self._worthwhile(guesses)
        # Until something fits, what is slow may be what does.
        if wanted := _rungs(hopeful if leader is None else _undecided(hopeful)):
            why = f"nothing that the graph leads to fits, and {len(wanted)} rungs might"
            return TraceFirst(wanted, why, walked.path, walked.skipped)
        if leader is None:
            return None
        why = "nothing that the graph leads to fits, and this should"
        return Try(leader.candidate, "guided", why, walked.path, walked.skipped)

    def _worthwhile(self, guesses: Sequence[Prospect]) -> list[Prospect]:
        """Return those that may be worth a probe, the most promising first."""
        return sorted(filter(self._is_worthwhile, guesses), key=lambda one: -one.improvement)

    def _raised(self, walked: Try) -> Try:
        """Return a candidate at the largest micro-batch that surely fits.

        One probe there says more than one at the smallest: it may win.
        """
        candidate = walked.candidate
        larger = [
            candidate.at(size) for size in self._room.sure(candidate.rung()) if size > candidate.micro_batch
        ]
        priced = {
            one: seconds
            for one in larger
            if not self._room.is_tried(one) and (seconds := self._context.seconds(one)) is not None
        }
        if not priced:
            return walked
        fastest = min(priced.values())

        def total(one: Candidate) -> float:
            """Return the time of the training at this speed, with that of the probe."""
            return priced[one] / fastest * self._training + self._prospects.probe_seconds(one, priced[one])

        raised = min(priced, key=total)
        bounds = self._predictor.bounds(raised)
        assert bounds is not None
        peak = format_bytes(round(bounds.mean))
        why = f"{walked.why}; micro-batch {raised.micro_batch} should fit, with {peak}"
        return Try(raised, walked.node, why, walked.path, walked.skipped)

    def improve(self, best: Score, walked: Try | Done) -> Decision:
        """Return what is expected to improve on the best: a candidate to probe, or rungs to trace first."""
        rungs = self._prospects.rungs(best.trial.candidate)
        found = self._prospects.to_probe(rungs, best.seconds)
        hopeful = [one for one in found if self._is_worthwhile(one)]
        leader = min(hopeful, key=lambda one: self._order(one, best.seconds), default=None)
        guesses = self._prospects.to_trace(rungs, best.seconds, leader)
        if wanted := _rungs(_undecided(self._worthwhile(guesses))):
            why = f"{len(wanted)} rungs could be faster than {_named(best.trial.candidate)}"
            return TraceFirst(wanted, why, walked.path, walked.skipped)
        if leader is not None:
            ahead = len({one.candidate.rung() for one in hopeful})
            why = _why(leader, best)
            every = leader.candidate.rung().model_copy(update={"checkpointed_blocks": "all"})
            if leader.candidate.checkpointed_blocks != "all" and self._context.takes_numbers(every):
                why = f"{why}; fewer checkpointed blocks may not fit"
            return Try(leader.candidate, "guided", why, walked.path, walked.skipped, ahead)
        return Done(self._end(found, best), "settled", walked.path, walked.skipped)

    def _is_worthwhile(self, one: Prospect) -> bool:
        return one.improvement >= max(MARGIN, one.cost / self._training)

    def _order(self, one: Prospect, best: float) -> tuple[int, int, float]:
        """Put first with what probe and training take least, and of what is as good within 1% the fewest techniques."""
        total = one.expected.seconds / best * self._training + one.cost
        rounded = round(100 * math.log(total / self._training))
        return rounded, len(self._context.ladder.differing(one.candidate.rung())), total

    def _end(self, found: Sequence[Prospect], best: Score) -> str:
        name = _named(best.trial.candidate)
        following = max(found, key=lambda one: one.improvement, default=None)
        settled = f"nothing else is expected to be {MARGIN:.0%} faster than {name}"
        if following is None:
            return settled
        behind = following.expected.seconds / best.seconds - 1
        next_one = f"{_named(following.candidate)}, predicted {behind:+.1%} in time"
        if following.improvement < MARGIN:
            return f"{settled}; next comes {next_one}"
        return (
            f"what may still be faster than {name} would not save its probe's time in "
            f"{format_duration(self._training)} of training (--training-time); next comes {next_one}, "
            f"in a probe of {format_duration(following.cost)}"
        )


def _undecided(prospects: Sequence[Prospect]) -> list[Prospect]:
    """Return those that may be as fast as the fastest: the 95% intervals of their guesses overlap its own.

    What is behind that would most often be traced for nothing; where not, it is asked for next.
    """
    widths = [math.exp(Z * one.expected.spread) for one in prospects]
    end = min(
        (one.expected.seconds * width for one, width in zip(prospects, widths, strict=True)), default=0.0
    )
    return [one for one, width in zip(prospects, widths, strict=True) if one.expected.seconds / width <= end]


def _rungs(prospects: Sequence[Prospect]) -> tuple[Candidate, ...]:
    """Return the rungs to trace together."""
    return tuple(dict.fromkeys(one.candidate.rung() for one in prospects))[:TRACED_AT_A_TIME]


def _why(one: Prospect, best: Score) -> str:
    faster = 1 - one.expected.seconds / best.seconds
    spread = Z * one.expected.spread
    source = "predicted" if one.traced else "guessed, for it cannot be traced,"
    said = f"{faster:.0%} faster" if faster >= 0 else f"{-faster:.0%} slower"
    return f"{source} {said} (± {spread:.0%}) than {_named(best.trial.candidate)}"


def _named(candidate: Candidate) -> str:
    return f"{title_of(candidate)} at micro-batch {candidate.micro_batch}"
