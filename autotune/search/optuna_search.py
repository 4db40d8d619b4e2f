"""Search by Optuna's TPE over the space's axes and the micro-batch, with memory as a constraint.

A pure function of history and context, like every strategy: each call has TPE (`search.tpe`) learn from the whole
history anew, with a seed that follows from both.

- It starts from predictions, where there is a memory model: the plain rung, each technique alone, and all together that
  are predicted to be faster, are traced, and the fastest that surely fit are probed first. Without one it starts from
  the plain rung.
- From then on TPE draws. What ran out of memory, or left less than the headroom, has broken a constraint, by the bytes
  above what may be used, and has no speed. What was lost says nothing, and is left out.
- A draw becomes the legal rung next to it, at the open micro-batch next to it that is predicted to fit. After one with
  nothing open the next goes elsewhere, because TPE takes it to be under way. Probes under way need no such thing: they
  come one after the other, and a history holds finished ones.
- It ends where `PATIENCE` probes in a row have not improved on the best by `MARGIN`, or nothing is open.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from random import Random
from typing import Any, Literal

from autotune.candidate import OPEN, Candidate
from autotune.memory.predictor import Predictor
from autotune.outcome import Lost, Ok
from autotune.search.comparison import MARGIN
from autotune.search.context import SearchContext
from autotune.search.enumeration import legal_rung, open_sizes, tried_sizes
from autotune.search.selection import missing
from autotune.search.strategy import Decision, Done, Skip, TraceFirst, Try
from autotune.search.tpe import ObservedTrial, Places, draws
from autotune.search.tpe_axes import SIZE, TpeAxes
from autotune.search.wording import comes_nearest
from autotune.trial import History, Trial
from autotune.units import format_duration

STARTS = 4
"""Probes that are chosen by prediction, before anything is drawn."""
PATIENCE = 10
"""Probes in a row without an improvement after which the search is over."""
NEAREST = "nearest"
"""The node of a probe of what is predicted not to fit, where nothing else is left."""
DRAWS = 16
"""Draws before the first open candidate in order is taken: then few are left, or hard to come by."""


class OptunaSearch:
    """Constrained multivariate TPE, started from predictions. Its sampler needs no torch."""

    name = "optuna"
    prices = True

    def propose(self, history: History, context: SearchContext) -> Decision:
        """Return what to trace or to probe next, or that the search is over."""
        search = _Search(history, context)
        return search.settled() or search.predicted() or search.drawn() or search.remaining()


class _Search:
    def __init__(self, history: History, context: SearchContext) -> None:
        self._history = history
        self._context = context
        self._axes = TpeAxes(history, context)
        self._tried = tried_sizes(history)
        self._simulated = context.site is not None and context.site.device.simulated
        self._predictor = self._calibrated(context.predictor)
        self._skipped: dict[Candidate, Skip] = {}

    def settled(self) -> Done | None:
        """Return the end where nothing has improved for long."""
        if self._since is None or self._since < PATIENCE:
            return None
        return Done(
            f"{PATIENCE} probes in a row were not {MARGIN:.0%} faster than the best before", "settled"
        )

    def predicted(self) -> Decision | None:
        """Return what to trace or to probe of what is predicted to be fast; None where that is done."""
        if len(self._history) >= STARTS:
            return None
        plain = self._axes.plain(self._axes.fallbacks)
        if self._predictor is None or self._context.speed is None:
            size = next(iter(self._sizes(plain)), None) if self._context.is_open(plain) else None
            if self._history or size is None:
                return None
            return self._try(plain.at(size), "start", "nothing is predicted: the plain rung comes first")
        rungs = self._singles(plain)
        if unknown := self._unknown(rungs):
            return TraceFirst(unknown, "what each technique saves and costs is where TPE starts")
        rungs += [rung for rung in self._combined(plain, rungs) if rung not in rungs]
        if unknown := self._unknown(rungs):
            return TraceFirst(unknown, "all techniques together that are predicted to be faster")
        if not (priced := self._priced(rungs)):
            walked = self._context.space.rungs(plain)
            rungs += [rung for rung in walked if self._context.is_open(rung) and rung not in rungs]
            if unknown := self._unknown(rungs):
                return TraceFirst(
                    unknown,
                    "no technique alone is predicted to fit: the decision graph knows what saves most",
                )
            priced = self._priced(rungs)
        if not priced:
            return None if self._history else self._nearest(rungs)
        seconds, candidate = min(priced, key=lambda entry: entry[0])
        why = f"predicted the fastest of {len(priced)}, with {format_duration(seconds)} a global step"
        return self._try(candidate, "start", why)

    def drawn(self) -> Try | None:
        """Return what TPE draws; None where nothing that it drew is open."""
        seed = zlib.crc32(f"{self._context.seed} {len(self._history)}".encode())
        random = Random(seed)
        for places in self._draws(seed):
            share, drawn = places[SIZE], self._axes.drawn(places)
            rung = legal_rung(
                {axis: drawn[axis] for axis in random.sample(list(drawn), len(drawn))}, self._context
            )
            if self._axes.is_within(rung) and self._context.is_open(rung) and (sizes := self._sizes(rung)):
                size = min(sizes, key=lambda size: abs(self._axes.share(rung.at(size)) - share))
                over = sum(self._excess(trial) is not None for trial in self._history)
                why = f"drawn by TPE from {len(self._history)} trials, {over} of which did not fit"
                return self._try(rung.at(size), "TPE", why)
        return None

    def remaining(self) -> Try | Done:
        """Return the first open candidate in order, or that none is left."""
        rungs = self._context.ladder.rungs
        if nearest := self._nearest(rungs):
            return nearest
        if self._since is None and any(trial.node == NEAREST for trial in self._history):
            # To trace all the others would take long, and only show by how much more they are over.
            why = f"{DRAWS} draws are predicted not to fit, and what came nearest did not"
            return Done(why, "settled", skipped=tuple(self._skipped.values()))
        for number, rung in enumerate(rungs, start=1):
            if self._axes.is_in_turn(rung) and (sizes := self._sizes(rung)):
                why = f"few are left: {DRAWS} draws found nothing new"
                return self._try(rung.at(sizes[0]), f"rung {number}", why)
        why = f"none of the {len(rungs)} rungs is left to try"
        return Done(why, "exhausted", skipped=tuple(self._skipped.values()))

    def _calibrated(self, predictor: Predictor | None) -> Predictor | None:
        """Return the memory model as the probes correct it; what is simulated comes out as priced."""
        if predictor is None or self._simulated:
            return predictor
        return predictor.calibrated(self._history, self._context.budget)

    @cached_property
    def _since(self) -> int | None:
        """Return how many probes were made since the best global step improved; None where nothing fits yet."""
        best, since = None, 0
        for trial in self._history:
            seconds, since = self._seconds(trial), since + 1
            if seconds is not None and (best is None or seconds < best * (1 - MARGIN)):
                best, since = seconds, 0
        return None if best is None else since

    def _singles(self, plain: Candidate) -> list[Candidate]:
        """Return the plain rung and those that differ from it in one axis; of numbers a model has too many."""
        changed = [
            plain.model_copy(update={axis: value})
            for axis, values in self._axes.values.items()
            for value in values
            if not (axis in OPEN and type(value) is int)
        ]
        return [rung for rung in dict.fromkeys([plain, *changed]) if self._context.is_open(rung)]

    def _combined(self, plain: Candidate, singles: Iterable[Candidate]) -> list[Candidate]:
        """Return all values together that are predicted to be faster than the plain rung's, were memory no matter."""
        seconds = {
            rung: raw for rung in singles if (raw := self._context.seconds(self._largest(rung))) is not None
        }
        faster = sorted(
            (raw, rung.key(), rung) for rung, raw in seconds.items() if raw < seconds.get(plain, 0.0)
        )
        wanted: dict[str, Any] = {}
        for _, _, rung in faster:
            (axis,) = (axis for axis in self._axes.values if getattr(rung, axis) != getattr(plain, axis))
            wanted.setdefault(axis, getattr(rung, axis))
        rest = {axis: getattr(plain, axis) for axis in self._axes.values if axis not in wanted}
        rung = legal_rung(wanted | rest, self._context)
        return [rung] if self._context.is_open(rung) else []

    def _is_known(self, rung: Candidate) -> bool:
        """Tell whether tracing a rung would teach nothing: that is done, or cannot be."""
        assert self._predictor is not None
        known = self._predictor.covers(rung) or self._predictor.timeline(rung) is not None
        return known or rung in self._context.untraceable or rung in self._context.refused

    def _unknown(self, rungs: Iterable[Candidate]) -> tuple[Candidate, ...]:
        return tuple(rung for rung in rungs if not self._is_known(rung))

    def _priced(self, rungs: Iterable[Candidate]) -> list[tuple[float, Candidate]]:
        """Return each rung that was not tried, at the largest size that surely fits, with its predicted seconds."""
        sure = [one for rung in rungs if rung not in self._tried and (one := self._surest(rung)) is not None]
        return [(seconds, one) for one in sure if (seconds := self._context.seconds(one)) is not None]

    def _largest(self, rung: Candidate) -> Candidate:
        """Return a rung at the largest micro-batch that the goal has use for."""
        batches = self._context.batches(rung)
        return rung.at(batches.up_to(0, batches.limit) or 1)

    def _surest(self, rung: Candidate) -> Candidate | None:
        """Return a rung at the largest open micro-batch that surely fits; None where none does, or it is not priced."""
        sizes = self._sizes(rung, "mean" if self._simulated else "high") if self._covers(rung) else []
        return rung.at(sizes[-1]) if sizes else None

    def _covers(self, rung: Candidate) -> bool:
        return self._predictor is not None and self._predictor.covers(rung)

    def _sizes(self, rung: Candidate, bound: Literal["mean", "high"] = "mean") -> list[int]:
        """Return the open micro-batches of a rung that are predicted to fit, or all where nothing is predicted."""
        if rung in self._context.refused:
            return []
        sizes = list(open_sizes(rung, self._tried, self._context))
        if self._predictor is None or not sizes:
            return sizes
        most = self._predictor.largest(rung, self._context.usable, sizes, bound)
        fitting = [size for size in sizes if most is None or size <= most]
        if not fitting and (prediction := self._predictor.predict(rung.at(sizes[0]))) is not None:
            self._skipped[rung] = Skip(rung.at(sizes[0]), "TPE", prediction)
        return fitting

    def _nearest(self, rungs: Iterable[Candidate]) -> Try | None:
        """Return what comes nearest to fitting of what is predicted not to, once, and only where nothing fits."""
        if (
            self._predictor is None
            or self._since is not None
            or any(t.node == NEAREST for t in self._history)
        ):
            return None
        near = []
        for rung in filter(self._axes.is_in_turn, rungs):
            size = next(open_sizes(rung, self._tried, self._context), None)
            if size is None or rung in self._context.refused:
                continue
            if (bounds := self._predictor.bounds(rung.at(size))) is not None:
                near.append((bounds.mean, rung.key(), rung.at(size)))
        if not near:
            return None
        peak, _, candidate = min(near)
        return self._try(candidate, NEAREST, comes_nearest(round(peak)))

    def _seconds(self, trial: Trial) -> float | None:
        """Return the measured seconds of a global step of a trial that fits; None of any other."""
        batches = self._context.batches(trial.candidate)
        if (
            not isinstance(trial.outcome, Ok)
            or trial.outcome.timing is None  # it ended early, and TPE is told so
            or not self._context.fits(trial.outcome.memory)
            or not batches.allows(trial.candidate.micro_batch)
        ):
            return None
        return trial.outcome.timing.global_step(batches.steps(trial.candidate.micro_batch))

    def _excess(self, trial: Trial) -> float | None:
        """Return by what share of the budget a trial was above what may be used, at least; None where it was not.

        As its verdict says, and where that does not or says less, as is predicted.
        """
        if (lacking := missing((trial,), self._context)) is None:
            return None
        bounds = self._predictor.bounds(trial.candidate) if self._predictor else None
        predicted = 0.0 if bounds is None else bounds.mean - self._context.usable
        return max(1.0, lacking[1] or 0.0, predicted) / self._context.budget

    def _draws(self, seed: int) -> Iterator[Places]:
        """Yield where in its values each axis is, and the micro-batch, as TPE draws them from the history."""
        seen = [
            ObservedTrial(self._axes.places(trial.candidate), self._seconds(trial), self._excess(trial))
            for trial in self._history
            if not isinstance(trial.outcome, Lost) and self._axes.is_within(trial.candidate)
        ]
        return draws(self._axes.parameters(), seen, seed, DRAWS)

    def _try(self, candidate: Candidate, node: str, why: str) -> Try:
        ahead = max(0, STARTS - len(self._history)) + PATIENCE - (self._since or 0)
        return Try(candidate, node, why, skipped=tuple(self._skipped.values()), ahead=max(1, ahead))
