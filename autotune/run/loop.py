"""The closed loop of one run: inspect, search, prove, emit. Composition only; each part is elsewhere.

Everything that happened is in the journal before anything follows from it, and every decision is a function of
the journal. So a run that was killed at any moment goes on from its folder as if nothing had happened.
"""

from __future__ import annotations

from functools import cached_property

import autotune
from autotune.candidate import Candidate
from autotune.errors import InputError
from autotune.executors.executor import Executor
from autotune.outcome import Drift, Lost
from autotune.probe.folder import ProbeFolder, clear_temporaries
from autotune.probe.protocol import Inspection, ProbeKind, ProbeRequest
from autotune.run.best import Best, NewerBest
from autotune.run.callbacks import RunCallbacks
from autotune.run.doubt import Doubt
from autotune.run.events import Asked, Inspected, Opened, Reopened, Retried, Searched, Skipped
from autotune.run.failure import inspection_failed, stop_at_crash
from autotune.run.finals import Finals
from autotune.run.folder import require_journal, require_same_code, require_unedited
from autotune.run.journal import Journal, now
from autotune.run.paths import RunPaths
from autotune.run.preflight import Preflight
from autotune.run.pricing import Pricing
from autotune.run.probing import Probing, probe_request
from autotune.run.prove import Proving
from autotune.run.reuse import EarlierMeasurements
from autotune.run.write_best import finalist
from autotune.search.context import SearchContext
from autotune.search.remaining_probes import count_remaining_probes
from autotune.search.selection import Score
from autotune.search.space import Space
from autotune.search.strategies import STRATEGIES
from autotune.search.strategy import Done, TraceFirst, Try, decide
from autotune.site import Site
from autotune.specs import RunSpec
from autotune.techniques.data import unpaddable
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
        require_journal(paths, journal.record)
        return _Run(spec, paths, executor, callbacks or RunCallbacks(), journal, tracer, recorded, doubt).go(
            retry_lost
        )


class _Run:
    context: SearchContext
    """What bounds the search, once the model is known."""
    preflight: Preflight
    """Refuses candidates, from then on."""
    pricing: Pricing
    """Traces them, and predicts what their probes will measure."""
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
            try:
                return Best.read(self.paths.best)
            except NewerBest:
                raise
            except InputError:  # it is gone or damaged: all that it said follows from the record once more
                self.journal.append(Reopened(time=now()))
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
        asking = context, self.preflight, self.request
        self.pricing = pricing = Pricing(*shared, *asking, self.strategy, self._tracer)
        self.probing = Probing(*shared, *asking, pricing.expected, self._recorded)
        self.callbacks.inspected(inspected.facts, context, self.journal.record.history)
        context.check()
        pricing.start()
        self.settle_pending()
        done = self.search()
        self.callbacks.searched(done)
        finals = Finals(*shared, self.request)
        proving = Proving(*shared, self.finalist, pricing.survey, pricing.offers, finals, self._doubt)
        return proving.prove(context, done)

    @cached_property
    def site(self) -> Site:
        """Where probes run, as the executor said when it was asked first."""
        return self.executor.describe()

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

    def search(self) -> Done:
        """Probe what the strategy proposes until it is done or the limits are spent."""
        while True:
            record = self.journal.record
            stop_at_crash(record.verdicts)
            context = self.pricing.informed()
            decision = decide(self.strategy, record.history, context)
            if isinstance(decision, TraceFirst):
                assert self.pricing.trace_first(decision.rungs), "a strategy asks for what is not known yet"
                continue
            if isinstance(decision, Try) and self.pricing.trace([decision.candidate]):
                continue  # what was learnt may change the decision
            self.skip(decision)
            if isinstance(decision, Done):
                self.journal.append(Searched(why=decision.why, reason=decision.reason, path=decision.path))
                return decision
            ahead = self.ahead(context) if decision.ahead is None else decision.ahead
            self.probing.attempt(record.next_number, decision, ahead)

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
        evaluation = self.pricing.evaluation(score.trial.candidate)
        return finalist(
            self.spec, self.paths.id, score, inspected.facts, site, finished.variables,
            evaluation, drift, record.written,
        )  # fmt: skip
