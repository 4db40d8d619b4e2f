"""Predict what a candidate will take before it is launched, and which micro-batch is the largest that fits.

Pure: timelines come from traces, measurements from a run's history. Nothing here says that a candidate does not fit;
only a probe proves that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from autotune.candidate import Candidate
from autotune.memory.calibration import Calibration, Corrected, Observation
from autotune.memory.device_overhead import DeviceOverhead
from autotune.memory.requests import Requests
from autotune.memory.timelines import Timelines
from autotune.memory.unlimited import Growths
from autotune.outcome import Breakdown, Ok, Oom, Phase
from autotune.prediction import Prediction
from autotune.timeline.step_events import CATEGORIES
from autotune.timeline.timeline import Peak, Timeline
from autotune.trial import History

EVALUATION_TIMES = 16
"""How much larger than the training's micro-batch one for evaluation may get: a device that is busy at 16 times as much
is no busier beyond."""
REQUESTS_KEPT = 4
"""Programs that a predictor keeps composed, of about 1 MB each: those of the rung that is priced."""


class _Usage(NamedTuple):
    """What a candidate takes, uncorrected, in bytes."""

    allocated: int
    reserved: int
    total: float
    """Reserved, with what the process holds beside the model."""
    rung: str
    """By which probes correct it: the key of its rung, about."""


class Predictor:
    """Predictions for the rungs that were traced, corrected by a history. Immutable but for what it remembers."""

    def __init__(
        self,
        timelines: Mapping[str, Timeline] | Timelines,
        overhead: DeviceOverhead,
        accumulating: Callable[[Candidate], bool] = lambda _: False,
        calibration: Calibration | None = None,
    ) -> None:
        """Take timelines, or these by key; `accumulating` tells whether a candidate takes several micro-steps."""
        self.timelines = timelines if isinstance(timelines, Timelines) else Timelines(timelines)
        self.overhead = overhead
        self.calibration = calibration or Calibration(overhead.prior())
        self._accumulating = accumulating
        self._used: dict[Candidate, _Usage] = {}
        self._needed: dict[Candidate, float] = {}
        self._reserved: dict[Candidate, float] = {}
        self._taught: tuple[History, int, Predictor] | None = None
        self._requests: dict[tuple[int, bool, bool], tuple[Timeline, Requests]] = {}
        self._growths = Growths()

    def with_timeline(self, candidate: Candidate, timeline: Timeline) -> Predictor:
        """Return this predictor with the timeline of one more rung."""
        return self.with_timelines({candidate: timeline})

    def with_timelines(self, timelines: Mapping[Candidate, Timeline]) -> Predictor:
        """Return this predictor with the timelines of more rungs, together in the time of one."""
        more = self.timelines.and_more(timelines)
        result = Predictor(more, self.overhead, self._accumulating, self.calibration)
        result._growths = self._growths
        # What was priced by other timelines stays; a rung goes by its own as soon as there is one.
        known = {*self._used, *self._needed, *self._reserved}
        same = {one for one in known if self.timeline(one) is result.timeline(one)}
        result._used = {one: usage for one, usage in self._used.items() if one in same}
        result._needed = {one: needed for one, needed in self._needed.items() if one in same}
        result._reserved = {one: reserved for one, reserved in self._reserved.items() if one in same}
        return result

    def calibrated(self, history: History, budget: int) -> Predictor:
        """Return this predictor calibrated by the probes of a history, and by no others.

        A probe that ran out of device memory measured only that its peak is above the budget (bytes): it counts
        as that where the prediction so far is below.
        """
        if self._taught is None or self._taught[0] is not history or self._taught[1] != budget:
            self._taught = history, budget, self._calibrated(history, budget)
        return self._taught[2]

    def _calibrated(self, history: History, budget: int) -> Predictor:
        observations = []
        for trial in history:
            usage = self._usage(trial.candidate)
            if usage is not None and isinstance(trial.outcome, Ok):
                measured = float(trial.outcome.memory.peak())
                observations.append(Observation(usage.rung, usage.total, measured))
        calibration = Calibration(self.overhead.prior(), observations)
        for trial in history:
            if not isinstance(trial.outcome, Oom) or trial.outcome.where != "device":
                continue
            usage = self._usage(trial.candidate)
            if usage is not None and calibration.correct(usage.rung, usage.total).mean < budget:
                calibration = calibration.also(Observation(usage.rung, usage.total, float(budget)))
        result = copy.copy(self)  # what was priced depends on the timelines alone
        result.calibration, result._taught = calibration, None
        return result

    def covers(self, candidate: Candidate) -> bool:
        """Tell whether there is a timeline that can price the candidate."""
        timeline = self.timeline(candidate)
        return timeline is not None and timeline.covers(candidate.micro_batch)

    def predict(self, candidate: Candidate) -> Prediction | None:
        """Return what a probe of the candidate should measure; None where its trace does not cover it."""
        usage, timeline = self._usage(candidate), self.timeline(candidate)
        if usage is None or timeline is None:
            return None
        corrected = self.calibration.correct(usage.rung, usage.total)
        return Prediction(
            allocated=usage.allocated,
            reserved=usage.reserved,
            peak=round(corrected.mean),
            low=max(0, round(corrected.low)),
            high=round(corrected.high),
            breakdown=breakdown(
                timeline.peak(
                    candidate.micro_batch,
                    self._accumulating(candidate),
                    blas_workspace=self.overhead.blas_workspace,
                )
            ),
        )

    def bounds(self, candidate: Candidate) -> Corrected | None:
        """Return the corrected peak with its interval (bytes) alone; fast."""
        usage = self._usage(candidate)
        return None if usage is None else self.calibration.correct(usage.rung, usage.total)

    def least(self, candidate: Candidate) -> float | None:
        """Return the bytes that a candidate takes at least, uncorrected: all that is allocated, and no more reserved.

        Fast; None where no timeline covers the candidate.
        """
        timeline = self.timeline(candidate)
        return None if timeline is None else self._least(candidate, timeline)

    def phase_above(self, candidate: Candidate, usable: int) -> Phase:
        """Return the phase in which a candidate whose peak is over `usable` bytes first goes beyond them."""
        usage, bounds, timeline = self._usage(candidate), self.bounds(candidate), self.timeline(candidate)
        assert usage is not None, "only what is predicted is over"
        assert bounds is not None
        assert timeline is not None
        beside = bounds.mean - usage.allocated
        accumulating = self._accumulating(candidate)
        curve = timeline.curve(candidate.micro_batch, accumulating)
        above = (phase for phase, _, level in curve if level + beside > usable)
        return next(above, timeline.peak(candidate.micro_batch, accumulating).phase)

    def largest(
        self,
        rung: Candidate,
        usable: int,
        sizes: Sequence[int],
        bound: Literal["low", "mean", "high"] = "mean",
    ) -> int | None:
        """Return the largest of these micro-batches, smallest first, whose peak is at most `usable` bytes.

        `bound` says which end of the interval counts: with `high` it surely fits, with `low` nothing larger can.
        0 where none fits, None where no timeline covers the rung. Found by bisection: memory grows with the
        micro-batch, but for the micro-step that accumulation adds, which only a smaller micro-batch needs.
        """
        timeline = self.timeline(rung)
        if timeline is None or timeline.exact is not None:
            return None

        key = _rung(rung)

        def within(raw: float) -> bool:
            return float(getattr(self.calibration.correct(key, raw), bound)) <= usable

        # The first so many of the sizes fit.
        def fits(count: int) -> bool:
            candidate = rung.at(sizes[count - 1])
            if not within(self._surely_reserved(candidate, timeline)):
                return False
            most_reserved = self._reserved_at_most(candidate, timeline)
            if most_reserved is not None and within(most_reserved):
                return True
            usage = self._usage(candidate)
            return usage is not None and within(usage.total)

        def most_with(beyond: float, limit: int) -> int:
            """Return how many fit, up to a limit, with so many bytes a sample beyond what is allocated."""

            def fitting(count: int) -> bool:
                return within(self._least(rung.at(sizes[count - 1]), timeline) + beyond * sizes[count - 1])

            # The program of a single sample is another one: where two fit, it is not composed.
            return _bisect(fitting, 2 if limit >= 2 and fitting(2) else 0, limit)

        # What is reserved is simulated event by event, what is allocated is a sum, 50 times as fast, and never more.
        low = most = most_with(0.0, len(sizes))
        step = 1
        while low > 0 and not fits(low):
            # What is reserved beyond it grows with the micro-batch, about: that says where to look next.
            candidate = rung.at(sizes[low - 1])
            reserved = self._surely_reserved(candidate, timeline)
            beyond = (reserved - self._least(candidate, timeline)) / candidate.micro_batch
            most, low, step = low - 1, most_with(beyond, low - step), 2 * step
        most = _bisect(fits, low, most)
        return sizes[most - 1] if most else 0

    def largest_evaluation(self, candidate: Candidate, usable: int) -> int | None:
        """Return the largest micro-batch of an evaluation that should fit beside a training, at least the training's.

        None where no evaluation was traced. Counted are tensors: an allocator that runs short gives up what it caches.
        At most `EVALUATION_TIMES` as much as the training's, as the proof tries no more either.
        """
        timeline = self.timeline(candidate)
        if timeline is None or timeline.evaluation is None:
            return None
        beside = self.overhead.held(candidate) + 2 * self.overhead.blas_workspace
        rung, micro_batch = _rung(candidate), candidate.micro_batch

        def fits(size: int) -> bool:
            raw = float(beside + timeline.evaluated(micro_batch, size))
            return self.calibration.correct(rung, raw).mean <= usable

        return max(micro_batch, _bisect(fits, micro_batch, EVALUATION_TIMES * micro_batch))

    def timeline(self, candidate: Candidate) -> Timeline | None:
        """Return the timeline that prices a candidate; None where none covers it."""
        return self.timelines.of(candidate)

    def _usage(self, candidate: Candidate) -> _Usage | None:
        """Return what a candidate takes, uncorrected; None where no timeline covers it. Computed once."""
        known = self._used.get(candidate)
        if known is None and (timeline := self.timeline(candidate)) is not None:
            known = self._used[candidate] = self._priced(candidate, timeline)
        return known

    def _priced(self, candidate: Candidate, timeline: Timeline) -> _Usage:
        requests = self._requests_of(timeline, candidate)
        if self.overhead.kind == "cpu":
            allocated = reserved = requests.allocated(candidate.micro_batch)
        else:
            usage = requests.usage(
                candidate.micro_batch, candidate.expandable_segments, candidate.max_split_size_bytes,
                blas_workspace=self.overhead.blas_workspace,
            )  # fmt: skip
            allocated, reserved = usage.allocated_peak, usage.reserved_peak
        total = float(self.overhead.held(candidate) + reserved)
        return _Usage(allocated, reserved, total, _rung(candidate))

    def _least(self, candidate: Candidate, timeline: Timeline) -> float:
        """Return the bytes of what is allocated, with what the process holds beside the model. Computed once."""
        known = self._needed.get(candidate)
        if known is None:
            requests = self._requests_of(timeline, candidate)
            bytes_ = requests.allocated(candidate.micro_batch, self.overhead.blas_workspace)
            known = self._needed[candidate] = float(self.overhead.held(candidate) + bytes_)
        return known

    def _surely_reserved(self, candidate: Candidate, timeline: Timeline) -> float:
        """Return at least how many bytes are reserved, with what the process holds beside. Computed once."""
        if self.overhead.kind == "cpu":
            return self._least(candidate, timeline)
        known = self._reserved.get(candidate)
        if known is None:
            bytes_ = self._requests_of(timeline, candidate).reserved_at_least(
                candidate.micro_batch, candidate.expandable_segments, self.overhead.blas_workspace
            )
            known = self._reserved[candidate] = float(self.overhead.held(candidate) + bytes_)
        return known

    def _reserved_at_most(self, candidate: Candidate, timeline: Timeline) -> float | None:
        """Return at most how many bytes are reserved, with what the process holds beside; None where it is not told."""
        if self.overhead.kind == "cpu" or candidate in self._used:
            return None
        bytes_ = self._requests_of(timeline, candidate).reserved_at_most(
            candidate.micro_batch, candidate.expandable_segments, self.overhead.blas_workspace
        )
        return None if bytes_ is None else float(self.overhead.held(candidate) + bytes_)

    def _requests_of(self, timeline: Timeline, candidate: Candidate) -> Requests:
        """Return what a candidate asks for, composed once for the micro-batches that are tried in a row."""
        accumulating = self._accumulating(candidate)
        kind = id(timeline), candidate.micro_batch == 1, accumulating
        if kind not in self._requests:
            while len(self._requests) >= REQUESTS_KEPT:
                self._requests.pop(next(iter(self._requests)))
            made = Requests(
                timeline, candidate.micro_batch, accumulating, self._growths, self.overhead.device_memory
            )
            self._requests[kind] = timeline, made  # which keeps the timeline, and so its number, for itself
        return self._requests[kind][1]


def _bisect(fits: Callable[[int], bool], low: int, limit: int) -> int:
    """Return the largest number up to `limit` that fits, where `low` (or nothing, at 0) does."""
    step = 1
    high = low + 1
    while high <= limit and fits(high):
        low, step = high, 2 * step
        high = low + step
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _rung(candidate: Candidate) -> str:
    """Return what a candidate is corrected with: its rung, whatever number of its blocks is checkpointed.

    What the model gets wrong of one number it gets wrong of all: on the cpu device, of 2 to all of 12 blocks of a small
    GPT-2, by the same to 0.7 MiB (benchmarks/data/grids/gpt2-deep.jsonl).
    """
    if candidate.checkpointed_blocks != "all":
        candidate = candidate.model_copy(update={"checkpointed_blocks": "all"})
    return candidate.rung().key()


def breakdown(peak: Peak) -> Breakdown:
    """Return what holds a peak, in the parts that a probe reports."""
    parts = peak.breakdown
    named = ("parameter", "gradient", "optimizer_state", "activation")
    return Breakdown(
        parameters=parts["parameter"],
        gradients=parts["gradient"],
        optimizer_state=parts["optimizer_state"],
        activations=parts["activation"],
        other=sum(parts[name] for name in CATEGORIES if name not in named),
    )
