"""The closed loop of one run: inspect, search, prove, emit. Composition only; each part is elsewhere.

Everything that happened is in the journal before anything follows from it, and every decision is a function of
the journal. So a run that was killed at any moment goes on from its folder as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import autotune
from autotune.candidate import Candidate
from autotune.errors import InputError, JournalError
from autotune.executors.executor import Executor
from autotune.memory.probe_lines import ProbeLines
from autotune.outcome import Drift, Lost, Ok
from autotune.prediction import Prediction
from autotune.probe.folder import ProbeFolder, clear_temporaries, write_atomically
from autotune.probe.protocol import Inspection, ProbeKind, ProbeRequest
from autotune.run.best import Best
from autotune.run.callbacks import RunCallbacks
from autotune.run.doubt import Doubt
from autotune.run.events import (  # fmt: skip
    Asked,
    Inspected,
    Offer,
    Opened,
    Retried,
    Searched,
    Skipped,
    Surveyed,
)
from autotune.run.failure import inspection_failed, stop_at_crash
from autotune.run.finals import Finals
from autotune.run.folder import require_same_code, require_unedited
from autotune.run.journal import Journal, now
from autotune.run.offers import Offering
from autotune.run.paths import RunPaths
from autotune.run.predictions import Predictions
from autotune.run.preflight import Preflight
from autotune.run.probing import Probing, probe_request
from autotune.run.prove import Proving
from autotune.run.reuse import EarlierMeasurements
from autotune.run.survey import survey
from autotune.run.write_best import finalist
from autotune.search.context import SearchContext
from autotune.search.remaining_probes import count_remaining_probes
from autotune.search.selection import Score
from autotune.search.space import Space
from autotune.search.strategies import STRATEGIES
from autotune.search.strategy import Done, Learn, Try, decide
from autotune.site import Site
from autotune.specs import RunSpec
from autotune.techniques.data import unpaddable
from autotune.timeline.curve import curve
from autotune.tracing.client import Tracer
from autotune.trial import TRIES


def tune(
    spec: RunSpec,
    paths: RunPaths,
    executor: Executor,
    callbacks: RunCallbacks | None = None,
    tracer: Tracer | None = None,
    retry_lost: bool = False,
    recorded: EarlierMeasurements | None = None,
    doubt: Doubt | None = None,
) -> Best:
    """Take a run from where its journal stands to its proven winner, and return what `best.yaml` says.

    With a `tracer` (and unless the spec says otherwise) the memory model spares probes; it never replaces one. What
    was `recorded` by earlier runs does, but in finals and proofs. A winner that held is proven again as long as `doubt`
    says so. With
    `retry_lost` candidates that something outside ended each time are tried again, in a decided run too.
    Raises NothingFits, NothingTrained, NothingProven, ModelError, JournalError, or InputError when another tuner has
    the run.
    """
    with Journal(paths.journal, paths.lock) as journal:
        return _Run(spec, paths, executor, callbacks or RunCallbacks(), journal, tracer, recorded, doubt).go(
            retry_lost
        )


class _Run:
    context: SearchContext
    """What bounds the search, once the model is known."""
    preflight: Preflight
    """Refuses candidates, from then on."""
    probing: Probing
    """Probes them."""

    def __init__(
        self,
        spec: RunSpec,
        paths: RunPaths,
        executor: Executor,
        callbacks: RunCallbacks,
        journal: Journal,
        tracer: Tracer | None,
        recorded: EarlierMeasurements | None,
        doubt: Doubt | None,
    ) -> None:
        self.spec = spec
        self.paths = paths
        self.executor = executor
        self.callbacks = callbacks
        self.journal = journal
        self._tracer = tracer
        self._recorded = recorded
        self._doubt = doubt
        self.predictions: Predictions | None = None
        self.refused: set[Candidate] = set()
        """Rungs that were to be priced and cannot run."""
        self.evaluations: dict[Candidate, int | None] = {}
        """Micro-batches for evaluation, as predicted."""
        self.strategy = STRATEGIES[spec.strategy]
        Space.load(spec.space, f"{paths.spec}: space")  # a mistake in it is told before anything is launched

    def go(self, retry_lost: bool) -> Best:
        """Inspect, search, prove; or return at once what was decided before."""
        if self.journal.record.asked is None:
            self.journal.append(Asked.of(self.spec))
        require_unedited(self.spec, self.journal.record, self.paths)
        if retry_lost:
            self.reopen()
        if (decided := self.journal.record.decided) and decided.winner is not None:
            return Best.read(self.paths.best)
        require_same_code(self.spec.model)
        self.clear_scratch()
        if self.spec.goal.objective.name == "energy" and self.site.device.energy_counter is None:
            raise InputError(
                f"--objective energy: {self.site.device.lacks_energy or 'nothing counts it here'}",
                about="objective",
            )
        self.journal.append(Opened(version=autotune.__version__, site=self.site, time=now()))
        inspected = self.inspect()
        context = SearchContext.of(self.spec, inspected.facts, inspected.budget, self.site, inspected.speed)
        self.context, self.preflight = context, Preflight(context, self.executor, self.paths.probes)
        shared = self.spec, self.paths, self.executor, self.site, self.callbacks, self.journal
        self.probing = Probing(*shared, context, self.preflight, self.request, self.expected, self._recorded)
        self.callbacks.inspected(inspected.facts, context, self.journal.record.history)
        done = self.search(context)
        self.callbacks.searched(done)
        finals = Finals(*shared, self.request)
        proving = Proving(*shared, self.finalist, self.survey, self.offers, finals, self._doubt)
        return proving.prove(context, done)

    @cached_property
    def site(self) -> Site:
        """Where probes run, as the executor said when it was asked first."""
        return self.executor.describe()

    @property
    def tracer(self) -> Tracer | None:
        """What traces, unless predictions are not wanted; a simulated device has nothing else."""
        if self.spec.model.command is not None and self.spec.model.traced_as is None:
            return None  # what a program of the user's own allocates, only its probes tell
        return self._tracer if self.spec.predict or self.site.device.simulated else None

    def reopen(self) -> None:
        """Have everything that was lost tried again, if anything was."""
        if unknown := self.journal.record.unknown:
            numbers = {
                work: tuple(entry.number for entry in unknown if entry.lost == work)
                for work in ("probe", "proof")
            }
            self.journal.append(Retried(probes=numbers["probe"], proofs=numbers["proof"], time=now()))

    def clear_scratch(self) -> None:
        """Remove what a tuner that was killed left on the disk: its probes' mapped files can be many GiB."""
        clear_temporaries(self.paths.root)
        for folder in (*self.paths.probes.glob("*"), *self.paths.probes.glob("*/rank*")):
            clear_temporaries(folder)
            ProbeFolder(folder).clear_scratch()

    def inspect(self) -> Inspected:
        """Learn what the model is, from a worker that builds it without memory."""
        if known := self.journal.record.inspection:
            return known
        self.callbacks.inspecting()
        request = self.request(Candidate(optimizer=self.spec.optimizer), "inspect")
        request = request.model_copy(update={"time_device": self.site.device.hardware is None})
        for _ in range(TRIES):
            with self.journal.doing("inspection"):
                finding = self.executor.run(
                    request, self.paths.inspection, timeout=self.spec.limits.probe_timeout,
                    on_progress=self.callbacks.progressing,
                )  # fmt: skip
            if not isinstance(finding.answer, Lost):
                break
        if not isinstance(finding.answer, Inspection):
            raise inspection_failed(finding.answer, self.site.device.budget)
        if self.spec.goal.lengths is not None and (reason := unpaddable(finding.answer.facts.task)):
            raise InputError(f"--lengths: {reason}")
        inspected = Inspected(
            facts=finding.answer.facts, baseline=finding.baseline or 0, budget=self.site.device.budget,
            speed=finding.answer.speed, written=finding.written,
        )  # fmt: skip
        self.journal.append(inspected)
        return inspected

    def search(self, context: SearchContext) -> Done:
        """Probe what the strategy proposes until it is done or the limits are spent."""
        context.check()
        self.start_predictions(context)
        self.settle_pending()
        while True:
            record = self.journal.record
            stop_at_crash(record.history)
            context = self.informed(context)
            decision = decide(self.strategy, record.history, context)
            if isinstance(decision, Learn):
                assert self.price(decision.rungs), "a strategy asks for what is not known yet"
                continue
            if isinstance(decision, Try) and self.learn([decision.candidate]):
                continue  # what was learnt may change the decision
            self.skip(decision)
            if isinstance(decision, Done):
                self.journal.append(Searched(why=decision.why, reason=decision.reason, path=decision.path))
                return decision
            ahead = self.ahead(context) if decision.ahead is None else decision.ahead
            self.probing.attempt(record.next_number, decision, ahead)

    def informed(self, context: SearchContext) -> SearchContext:
        """Return a context with what was learnt from traces so far."""
        if (known := self.predictions) is None:
            lines = self.spec.model.command is not None and self.spec.predict
            return context.informed(ProbeLines(), None) if lines else context
        return context.informed(known.predictor, known.speed, known.untraceable, frozenset(self.refused))

    def start_predictions(self, context: SearchContext) -> None:
        """Start the memory model, where the run has one, with what the run knew before."""
        record = self.journal.record
        simulated = self.site.device.simulated
        if self.tracer is None or record.inspection is None or (simulated and not self.strategy.prices):
            return  # a simulated device is itself the memory model
        folder = self.paths.tracing
        self.predictions = Predictions(self.tracer, self.site.device, record.inspection, context, folder)
        timeout = self.spec.limits.probe_timeout
        with self.journal.doing("trace"):
            self.predictions.recall(
                record.traced,
                lambda candidate: self.request(candidate, "trace"),
                timeout,
                self.callbacks.tracing,
            )

    def price(self, wanted: Sequence[Candidate]) -> bool:
        """Trace rungs that a strategy asks for, and note those that cannot run; tell whether anything is new."""
        refused = {rung for rung in wanted if self.preflight.refusal(rung)} - self.refused
        self.refused |= refused
        return self.learn(wanted) or bool(refused)

    def learn(self, wanted: Sequence[Candidate]) -> bool:
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
            lines = self.predictions.learn(
                self.request(first, "trace").model_copy(update={"also": tuple(others)}),
                self.spec.limits.probe_timeout, self.callbacks.progressing,
            )  # fmt: skip
        for traced in lines:
            self.journal.append(traced)
            self.callbacks.traced(traced)
        return True

    def skip(self, decision: Try | Done) -> None:
        """Journal what the walk passed over for the first time."""
        known = {entry.candidate for entry in self.journal.record.skipped}
        for skip in decision.skipped:
            if skip.candidate not in known:
                known.add(skip.candidate)
                self.journal.append(
                    Skipped(candidate=skip.candidate, node=skip.node, prediction=skip.prediction, time=now())
                )
                self.callbacks.skipping(skip)

    def ahead(self, context: SearchContext) -> int:
        """Return how many probes are still to come, the next one included, about; 1 where nobody hears of it."""
        if not self.callbacks.follows_ahead:
            return 1
        return count_remaining_probes(self.strategy, self.journal.record.history, context)

    def request(self, candidate: Candidate, kind: ProbeKind) -> ProbeRequest:
        """Return the request for a candidate at this run's goal."""
        context = self.context if self.journal.record.inspection is not None else None
        return probe_request(self.spec, self.site, context, candidate, kind)

    def expected(self, candidate: Candidate) -> Prediction | None:
        """Return what the models expect a probe of the candidate to measure; None where the run has none."""
        history = self.journal.record.history
        if self.predictions is None and self.spec.model.command is not None and self.spec.predict:
            return ProbeLines().learned(history, self.context.budget).predict(candidate)
        return self.predictions.predict(candidate, history) if self.predictions else None

    def settle_pending(self) -> None:
        """Try again what was under way when an earlier start of the tuner ended, and what is to be retried."""
        for started in self.journal.record.pending:
            decision = Try(started.candidate, started.node, started.why, started.path)
            self.probing.attempt(started.number, decision, ahead=1)

    def finalist(self, score: Score, drift: Drift) -> Best:
        """Return what `best.yaml` says of a trial, before its proof."""
        record, number = self.journal.record, score.trial.number
        inspected, finished, site = record.inspection, record.finished(number), record.site(number)
        assert inspected is not None
        assert finished is not None
        assert site is not None
        candidate = score.trial.candidate
        if candidate not in self.evaluations:
            self.evaluations[candidate] = self.predict_evaluation(candidate, inspected)
        return finalist(
            self.spec, self.paths.id, score, inspected.facts, site, finished.variables,
            self.evaluations[candidate], drift, record.written,
        )  # fmt: skip

    def survey(self, winner: Score) -> None:
        """Journal what the models say of configurations around a winner, where the run has models."""
        record = self.journal.record
        rungs = [entry.candidate for entry in record.traced if not entry.reason]
        if (predictions := self.predictions) is None:
            if self.tracer is None or record.inspection is None or not self.site.device.simulated:
                return
            # A simulated device has priced its own probes: their traces are there.
            rungs = [trial.candidate for trial in record.history if isinstance(trial.outcome, Ok)]
            predictions = Predictions(
                self.tracer, self.site.device, record.inspection, self.context, self.paths.tracing
            )
            with self.journal.doing("trace"):
                for candidate in rungs:
                    if not predictions.knows(candidate):
                        predictions.learn(self.request(candidate, "trace"), self.spec.limits.probe_timeout)
        self.keep_step_memory(predictions, winner)
        found = survey(
            predictions, winner.trial.candidate, rungs, record.history, self.context,
            measured=not self.site.device.simulated,
        )  # fmt: skip
        self.journal.append(Surveyed(winner=winner.trial.number, priced=found, time=now()))

    def keep_step_memory(self, predictions: Predictions, winner: Score) -> None:
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

    def offers(self, done: Done) -> tuple[Offer, ...]:
        """Return what would fit by consent alone, priced where the run predicts."""
        record, predictions = self.journal.record, self.predictions
        if predictions is None and self.tracer is not None and record.inspection is not None:
            predictions = Predictions(
                self.tracer, self.site.device, record.inspection, self.context, self.paths.tracing
            )
        known = predictions if self.spec.predict else None
        with self.journal.doing("trace"):
            offering = Offering(self.context, self.preflight, known, self.request, self.callbacks.tracing)
            return offering.offers(done, record.history)

    def predict_evaluation(self, candidate: Candidate, inspected: Inspected) -> int | None:
        """Return the largest micro-batch of an evaluation that should fit; None in a replay, and of a command."""
        if self.tracer is None or self.site.device.replayed or self.spec.model.command is not None:
            return None
        predictions = self.predictions or Predictions(
            self.tracer, self.site.device, inspected, self.context, self.paths.tracing
        )
        request, history = self.request(candidate, "trace"), self.journal.record.history
        with self.journal.doing("trace"):
            return predictions.evaluation(request, history, self.spec.limits.probe_timeout)
