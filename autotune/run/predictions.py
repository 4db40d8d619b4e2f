"""What the memory model knows during a run: the rungs traced so far, and those that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from autotune.candidate import Candidate
from autotune.devices.hardware import Hardware, lookup
from autotune.memory.device_overhead import DeviceOverhead
from autotune.memory.predictor import Predictor
from autotune.outcome import Ok, StepTiming
from autotune.prediction import Prediction
from autotune.probe.protocol import ProbeRequest, Progress
from autotune.run.events import Inspected, RungTraced
from autotune.search.context import SearchContext
from autotune.search.strategy import TRACED_AT_A_TIME
from autotune.specs import DeviceFacts
from autotune.timing.calibration import SpeedCalibration, SpeedSample
from autotune.timing.machine import Machine
from autotune.timing.step_predictor import StepPredictor
from autotune.tracing.client import Tracer
from autotune.trial import History


class Predictions:
    """Traces rungs as the search comes to them. What it knows follows from the journal and the cache alone."""

    def __init__(
        self, tracer: Tracer, facts: DeviceFacts, inspected: Inspected, context: SearchContext, folder: Path
    ) -> None:
        """`folder` is where workers that trace may write."""
        row = lookup(facts.hardware) if facts.hardware else None
        self._machine = _machine(row, inspected)
        blas = row.cublas_bytes() if row else 0
        overhead = DeviceOverhead.measured(
            facts.kind, inspected.baseline, blas, context.goal.gpus, facts.total
        )
        if context.source is not None and context.source.command is not None:
            overhead = replace(overhead, foreign=True)
        self._accumulating: Callable[[Candidate], bool] = lambda candidate: (
            context.batches(candidate).steps(candidate.micro_batch) > 1
        )
        self.predictor = Predictor({}, overhead, self._accumulating)
        self._tracer = tracer
        self._budget = inspected.budget
        self._usable = context.usable
        self._folder = folder
        self._untraceable: set[Candidate] = set()
        self._speed: tuple[Predictor, StepPredictor] | None = None

    @property
    def speed(self) -> StepPredictor | None:
        """The roofline of all that was traced; None where nothing tells what the device reaches."""
        if self._machine is None:
            return None
        if self._speed is None or self._speed[0] is not self.predictor:
            self._speed = (self.predictor, StepPredictor(self.predictor, self._machine, self._accumulating))
        return self._speed[1]

    @property
    def untraceable(self) -> frozenset[Candidate]:
        """Rungs that no trace can price."""
        return frozenset(self._untraceable)

    def knows(self, candidate: Candidate) -> bool:
        """Tell whether there is nothing to learn of a candidate's rung: it was traced, or cannot be."""
        return candidate.rung() in self._untraceable or self.predictor.covers(candidate)

    def recall(
        self,
        entries: Sequence[RungTraced],
        request: Callable[[Candidate], ProbeRequest],
        timeout: float,
        tracing: Callable[[Sequence[Candidate]], None],
    ) -> None:
        """Learn again what an earlier start of the run knew.

        What the cache does not hold any more is traced again, as many at a time as a search asks for, since each worker
        imports torch anew; `tracing` is told before.
        """
        self._untraceable |= {entry.candidate.rung() for entry in entries if entry.reason}
        traced = [entry.candidate for entry in entries if not entry.reason]
        for start in range(0, len(traced), TRACED_AT_A_TIME):
            new = [one for one in traced[start : start + TRACED_AT_A_TIME] if not self.knows(one)]
            if not new:
                continue
            first, *others = new
            asked = request(first).model_copy(update={"also": tuple(others)})
            self.trace(asked, timeout, _at_first(partial(tracing, new)))

    def trace(
        self,
        request: ProbeRequest,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> tuple[RungTraced, ...]:
        """Trace the rung of a request and those it has besides; return the lines for the journal. Raises ProbeError."""
        found = self._tracer.trace(request, self._folder, timeout=timeout, on_progress=on_progress)
        lines = []
        for candidate, trace in found.items():
            if trace.timeline is None:
                self._untraceable.add(candidate.rung())
            lines.append(RungTraced(candidate=candidate, reason=trace.reason, seconds=trace.seconds))
        self.predictor = self.predictor.with_timelines(
            {candidate: trace.timeline for candidate, trace in found.items() if trace.timeline is not None}
        )
        return tuple(lines)

    def predict(self, candidate: Candidate, history: History) -> Prediction | None:
        """Return what a probe of the candidate should measure, corrected by a history."""
        prediction = self.predictor.calibrated(history, self._budget).predict(candidate)
        timing = self._timing(candidate)
        if prediction is None or timing is None:
            return prediction
        seen = [
            SpeedSample(trial.candidate.rung().key(), raw, trial.outcome.timing)
            for trial in history
            if isinstance(trial.outcome, Ok)
            and trial.outcome.timing is not None
            and (raw := self._timing(trial.candidate)) is not None
        ]
        paced = SpeedCalibration(seen).correct(candidate.rung().key(), timing)
        return prediction.model_copy(update={"timing": paced, "roofline": timing})

    def evaluation(self, request: ProbeRequest, history: History, timeout: float) -> int | None:
        """Return the largest micro-batch of an evaluation that should fit; None where that cannot be told.

        The rung of the request is traced once more, with a forward pass without gradients beside the training.
        """
        candidate = request.candidate
        if candidate.rung() in self._untraceable:
            return None
        asked = request.model_copy(update={"kind": "trace", "evaluation": True})
        timeline = self._tracer.trace(asked, self._folder, timeout=timeout)[candidate].timeline
        if timeline is None:
            return None
        predictor = self.predictor.with_timeline(candidate, timeline).calibrated(history, self._budget)
        return predictor.largest_evaluation(candidate, self._usable)

    def _timing(self, candidate: Candidate) -> StepTiming | None:
        """Return the roofline's times, uncorrected; None for hardware that the table does not know."""
        return None if self.speed is None else self.speed.timing(candidate)


def _at_first(tell: Callable[[], None]) -> Callable[[Progress], None]:
    """Return what calls `tell` at the first progress of a worker, and at no other: what is cached makes none."""
    told = False

    def hear(_: Progress) -> None:
        nonlocal told
        if not told:
            told = True
            tell()

    return hear


def _machine(row: Hardware | None, inspected: Inspected) -> Machine | None:
    """Return what the device reaches: by its data sheet, else as it was measured."""
    if row is not None:
        return Machine.of(row)
    return None if inspected.speed is None else Machine.measured(inspected.speed)
