"""What a run knows of candidates before it probes them: what was traced, and what is predicted of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autotune.candidate import Candidate
from autotune.errors import JournalError
from autotune.memory.probe_lines import ProbeLines
from autotune.outcome import Ok
from autotune.prediction import Prediction
from autotune.probe.folder import write_atomically
from autotune.probe.protocol import ProbeKind, ProbeRequest
from autotune.run.events import Offer, Surveyed
from autotune.run.journal import now
from autotune.run.offers import Offering
from autotune.run.predictions import Predictions
from autotune.run.preflight import Preflight
from autotune.run.stage import Stage
from autotune.run.survey import survey
from autotune.search.context import SearchContext
from autotune.search.selection import Score
from autotune.search.strategy import Done, Strategy
from autotune.timeline.curve import curve
from autotune.tracing.client import Tracer


@dataclass
class Pricing(Stage):
    """Traces and prices the candidates of one run; what was traced is in the journal before anything follows of it."""

    context: SearchContext
    """What bounds the search, before anything was traced."""
    preflight: Preflight
    request: Callable[[Candidate, ProbeKind], ProbeRequest]
    """Returns the request for a candidate at the run's goal."""
    strategy: Strategy
    given: Tracer | None
    """What traces, if predictions are wanted."""
    predictions: Predictions | None = None
    """The memory model and the roofline, where the run has them."""
    refused: set[Candidate] = field(default_factory=set)
    """Rungs that were to be priced and cannot run."""
    evaluations: dict[Candidate, int | None] = field(default_factory=dict)
    """Micro-batches for evaluation, as predicted."""

    def start(self) -> None:
        """Start the memory model, where the run has one, with what the run knew before."""
        if self.site.device.simulated and not self.strategy.prices:
            return  # a simulated device is itself the memory model
        self.predictions = self._made()
        if self.predictions is None:
            return
        with self.journal.doing("trace"):
            self.predictions.recall(
                self.journal.record.traced, lambda candidate: self.request(candidate, "trace"),
                self.spec.limits.probe_timeout, self.callbacks.tracing,
            )  # fmt: skip

    def informed(self) -> SearchContext:
        """Return the search's context with what was learnt from traces so far."""
        if (known := self.predictions) is None:
            return self.context.informed(ProbeLines(), None) if self._by_lines else self.context
        return self.context.informed(known.predictor, known.speed, known.untraceable, frozenset(self.refused))

    def trace_first(self, wanted: Sequence[Candidate]) -> bool:
        """Trace rungs that a strategy asks for, and note those that cannot run; tell whether anything is new."""
        refused = {rung for rung in wanted if self.preflight.refusal(rung)} - self.refused
        self.refused |= refused
        return self.trace(wanted) or bool(refused)

    def trace(self, wanted: Sequence[Candidate]) -> bool:
        """Trace the rungs of candidates, but for what is known or useless; tell whether something was learnt."""
        if self.predictions is None:
            return False
        new = [
            candidate
            for candidate in wanted
            if not self.predictions.knows(candidate) and not self.preflight.refusal(candidate)
        ]
        if not new:
            return False
        first, *others = new
        self.callbacks.tracing(new)
        with self.journal.doing("trace"):
            lines = self.predictions.trace(
                self.request(first, "trace").model_copy(update={"also": tuple(others)}),
                self.spec.limits.probe_timeout, self.callbacks.progressing,
            )  # fmt: skip
        for traced in lines:
            self.journal.append(traced)
            self.callbacks.traced(traced)
        return True

    def expected(self, candidate: Candidate) -> Prediction | None:
        """Return what the models expect a probe of the candidate to measure; None where the run has none."""
        history = self.journal.record.history
        if self.predictions is None and self._by_lines:
            return ProbeLines().calibrated(history, self.context.budget).predict(candidate)
        return self.predictions.predict(candidate, history) if self.predictions else None

    def evaluation(self, candidate: Candidate) -> int | None:
        """Return the largest micro-batch of an evaluation that should fit; None in a replay, and of a command."""
        if self.site.device.replayed or self.spec.model.command is not None:
            return None
        if candidate not in self.evaluations:
            predictions = self._made()
            if predictions is None:
                return None
            request, history = self.request(candidate, "trace"), self.journal.record.history
            with self.journal.doing("trace"):
                timeout = self.spec.limits.probe_timeout
                self.evaluations[candidate] = predictions.evaluation(request, history, timeout)
        return self.evaluations[candidate]

    def survey(self, winner: Score) -> None:
        """Journal what the models say of configurations around a winner, where the run has models."""
        record = self.journal.record
        rungs = [entry.candidate for entry in record.traced if not entry.reason]
        predictions = self.predictions
        if predictions is None and self.site.device.simulated and (predictions := self._made()) is not None:
            # A simulated device has priced its own probes: their traces are there.
            rungs = [trial.candidate for trial in record.history if isinstance(trial.outcome, Ok)]
            with self.journal.doing("trace"):
                for candidate in rungs:
                    if not predictions.knows(candidate):
                        predictions.trace(self.request(candidate, "trace"), self.spec.limits.probe_timeout)
        if predictions is None:
            return
        self._keep_step_memory(predictions, winner)
        found = survey(
            predictions, winner.trial.candidate, rungs, record.history, self.context,
            measured=not self.site.device.simulated,
        )  # fmt: skip
        self.journal.append(Surveyed(winner=winner.trial.number, priced=found, time=now()))

    def offers(self, done: Done) -> tuple[Offer, ...]:
        """Return what would fit by consent alone, priced where the run predicts."""
        known = self._made() if self.spec.predict else None
        with self.journal.doing("trace"):
            offering = Offering(self.context, self.preflight, known, self.request, self.callbacks.tracing)
            return offering.offers(done, self.journal.record.history)

    @property
    def _tracer(self) -> Tracer | None:
        """What traces, unless predictions are not wanted; a simulated device has nothing else."""
        if self.spec.model.command is not None and self.spec.model.traced_as is None:
            return None  # what a program of the user's own allocates, only its probes tell
        return self.given if self.spec.predict or self.site.device.simulated else None

    @property
    def _by_lines(self) -> bool:
        """Whether lines through the peaks of probes are all that predicts."""
        return self.spec.model.command is not None and self.spec.predict

    def _made(self) -> Predictions | None:
        """Return the run's predictions, else such as know nothing yet; None where the run cannot trace."""
        inspection = self.journal.record.inspection
        if self.predictions is not None or self._tracer is None or inspection is None:
            return self.predictions
        return Predictions(self._tracer, self.site.device, inspection, self.context, self.paths.tracing)

    def _keep_step_memory(self, predictions: Predictions, winner: Score) -> None:
        """Write down a step of a winner as its trace has it, for reports: traces are in a cache, and may be gone."""
        candidate = winner.trial.candidate
        if (timeline := predictions.predictor.timeline(candidate)) is None:
            return
        shown = curve(timeline, candidate.micro_batch, winner.accumulation.steps > 1, points=600)
        try:
            write_atomically(self.paths.step_memory, shown.model_dump_json())
        except OSError as error:
            raise JournalError(
                f"{self.paths.step_memory} cannot be written: {error.strerror}", "unwritable"
            ) from error
