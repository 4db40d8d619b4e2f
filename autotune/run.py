"""The closed loop of one run: inspect, search, prove, emit. Composition only; each part is elsewhere.

Everything that happened is in the journal before anything follows from it, and every decision is a function of
the journal. So a run that was killed at any moment goes on from its folder as if nothing had happened.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import autotune
from autotune.best import Best
from autotune.candidate import Candidate
from autotune.demand import offloaded_bytes
from autotune.emission import contender
from autotune.errors import AutotuneError, InputError, JournalError, ModelError, NothingFits, NothingProven
from autotune.executors.executor import Executor, Finding
from autotune.journal import Journal
from autotune.outcome import Crash, Ok, Oom, Outcome, Unsupported
from autotune.paths import RunPaths
from autotune.probe.folder import ProbeFolder, write_atomically
from autotune.probe.protocol import Inspection, ProbeRequest
from autotune.proof import after_proofs, judge, proof_request
from autotune.record import Decided, Finished, Inspected, Opened, ProofFinished, ProofStarted, Started
from autotune.selection import Score, missing, rank
from autotune.space import Space
from autotune.specs import RunSpec
from autotune.strategies.climb import propose
from autotune.strategies.decision import Done, Scope, Try
from autotune.trial import Trial
from autotune.units import format_bytes, format_duration
from autotune.watch import Silent, Watch


def tune(spec: RunSpec, paths: RunPaths, executor: Executor, watch: Watch | None = None) -> Best:
    """Take a run from where its journal stands to its proven winner, and return what `best.yaml` says.

    Raises NothingFits, NothingProven, ModelError, JournalError, or InputError when another tuner has the run.
    """
    with Journal(paths.journal, paths.lock) as journal:
        return _Run(spec, paths, executor, watch or Silent(), journal).go()


class _Run:
    def __init__(
        self, spec: RunSpec, paths: RunPaths, executor: Executor, watch: Watch, journal: Journal
    ) -> None:
        self.spec = spec
        self.paths = paths
        self.executor = executor
        self.watch = watch
        self.journal = journal
        self.space = Space.load(spec.space, f"{paths.spec}: space")

    def go(self) -> Best:
        """Inspect, search, prove; or return at once what was decided before."""
        if (decided := self.journal.record.decided) and decided.winner is not None:
            return Best.read(self.paths.best)
        self.clear_scratch()
        self.journal.append(Opened(version=autotune.__version__, time=_now()))
        inspected = self.inspect()
        scope = Scope.of(self.spec, inspected)
        self.watch.inspected(inspected.facts, scope, self.journal.record.history)
        done = self.search(scope)
        self.watch.searched(done)
        return self.prove(scope, done)

    def clear_scratch(self) -> None:
        """Remove what probes of a tuner that was killed left on the disk: mapped files can be many GiB."""
        for folder in self.paths.probes.glob("*"):
            ProbeFolder(folder).clear_scratch()

    def inspect(self) -> Inspected:
        """Learn what the model is, from a worker that builds it without memory."""
        if known := self.journal.record.inspection:
            return known
        self.watch.inspecting()
        request = self.request(Candidate(optimizer=self.spec.optimizer), "inspect")
        finding = self.executor.run(
            request, self.paths.inspection, timeout=self.spec.limits.probe_timeout,
            on_progress=self.watch.progressing,
        )  # fmt: skip
        if not isinstance(finding.answer, Inspection):
            raise _inspection_failed(finding.answer, self.executor.facts.budget)
        inspected = Inspected(
            facts=finding.answer.facts, baseline=finding.baseline or 0, budget=self.executor.facts.budget
        )
        self.journal.append(inspected)
        return inspected

    def search(self, scope: Scope) -> Done:
        """Probe what the strategy proposes until it is done or the limits are spent."""
        scope.check()
        self.finish_lost_probe()
        while True:
            record = self.journal.record
            decision = propose(record.history, self.space, scope)
            if isinstance(decision, Done):
                return decision
            if spent := self.spent():
                return Done(spent, decision.path)
            self.attempt(record.next_number, decision)

    def attempt(self, number: int, decision: Try) -> None:
        """Journal, launch, journal; stop the run when the model itself fails."""
        candidate = decision.candidate
        self.journal.append(
            Started(number=number, candidate=candidate, node=decision.node, why=decision.why, time=_now())
        )
        self.watch.trying(number, decision)
        finding = self.probe(number, candidate)
        assert not isinstance(finding.answer, Inspection)
        self.journal.append(Finished(number=number, outcome=finding.answer, seconds=finding.seconds))
        trial = self.journal.record.history[-1]
        self.watch.tried(trial)
        _stop_at_crash(trial, self.journal.record.history)

    def probe(self, number: int, candidate: Candidate) -> Finding:
        """Run one candidate, unless it can be refused without running it."""
        reason = self.space.refusal(candidate) or self.lacks_bf16(candidate) or self.lacks_room(candidate)
        if reason:
            return Finding(Unsupported(reason=reason), None, 0.0)
        return self.executor.run(
            self.request(candidate, "train"), self.paths.probe(number),
            timeout=self.spec.limits.probe_timeout, on_progress=self.watch.progressing,
        )  # fmt: skip

    def lacks_bf16(self, candidate: Candidate) -> str | None:
        """Return why the device cannot compute in the candidate's precision, or None."""
        facts = self.executor.facts
        if candidate.precision == "bf16" and not facts.supports_bf16:
            return f"{facts.name} has no bf16"
        return None

    def lacks_room(self, candidate: Candidate) -> str | None:
        """Return why host memory or disk cannot hold what the candidate offloads, or None."""
        inspected = self.journal.record.inspection
        assert inspected is not None
        needed = offloaded_bytes(candidate, inspected.facts)
        room = self.executor.offload_room(self.paths.probes) if needed else 0
        if needed <= room:
            return None
        return f"offload needs {format_bytes(needed)} off the device, and only {format_bytes(room)} are free there"

    def request(self, candidate: Candidate, kind: str) -> ProbeRequest:
        """Return the request for a candidate at this run's goal."""
        spec, inspected = self.spec, self.journal.record.inspection
        steps = 1
        if inspected is not None:
            steps = Scope.of(spec, inspected).accumulation(candidate.micro_batch).steps
        return ProbeRequest.model_validate(
            {
                "kind": kind, "model": spec.model, "candidate": candidate, "seq_len": spec.goal.seq_len,
                "accumulation_steps": steps, "device": self.executor.facts.torch_name,
                "budget": self.executor.facts.budget, "seed": spec.seed,
                "sample_seconds": spec.limits.sample_seconds, "sample_steps": spec.limits.sample_steps,
                "folder": "",
            }
        )  # fmt: skip

    def finish_lost_probe(self) -> None:
        """Retry once the probe that was under way when the tuner was lost; the second loss is its verdict."""
        if (unfinished := self.journal.record.unfinished()) is None:
            return
        started, starts = unfinished
        if starts == 1:
            self.attempt(started.number, Try(started.candidate, started.node, started.why))
            return
        lost = Crash(
            reason="lost", phase="start", message="the tuner was killed twice while this probe was running"
        )
        self.journal.append(Finished(number=started.number, outcome=lost, seconds=0.0))
        self.watch.tried(self.journal.record.history[-1])

    def spent(self) -> str | None:
        """Return which limit ended the search, or None."""
        limits, record = self.spec.limits, self.journal.record
        if len(record.history) >= limits.max_probes:
            return f"stopped after {limits.max_probes} probes (--max-probes)"
        if limits.time_budget is not None and record.seconds >= limits.time_budget:
            return f"stopped after {format_duration(record.seconds)} of probes (--time-budget)"
        return None

    def prove(self, scope: Scope, done: Done) -> Best:
        """Relaunch the fastest from its emitted file; where that does not hold, what is then the fastest."""
        if not rank(self.journal.record.history, scope):
            raise self.nothing_fits(scope, done)
        while remaining := rank(after_proofs(self.journal.record.history, self.journal.record.proofs), scope):
            held = [proof for proof in self.journal.record.proofs if proof.passed]
            proof = held[0] if held else self.prove_one(remaining[0])
            if proof.passed:
                score = next(score for score in remaining if score.trial.number == proof.number)
                return self.emit(score, proof)
        failed = "; ".join(f"probe {proof.number}: {proof.why}" for proof in self.journal.record.proofs)
        self.journal.append(Decided(winner=None, why=failed, time=_now()))
        raise NothingProven(
            f"configurations fitted, but none held when relaunched. {failed}. If the machine was busy with other "
            "work, repeat on a quiet one or allow more with --speed-tolerance"
        )

    def prove_one(self, score: Score) -> ProofFinished:
        """Write the contender's file, read it back, and run what it says."""
        number = score.trial.number
        starts = self.journal.record.unfinished_proofs(number)
        self.write(self.paths.contender, self.contender(score))
        self.watch.proving(score)
        if starts >= 2:
            outcome: Outcome = Crash(
                reason="lost", phase="start", message="the tuner was killed twice in this proof"
            )
            finding = Finding(outcome, None, 0.0)
        else:
            self.journal.append(ProofStarted(number=number, time=_now()))
            emitted = Best.read(self.paths.contender)
            finding = self.executor.run(
                proof_request(emitted, self.spec.limits.proof_seconds), self.paths.proof(number),
                timeout=self.spec.limits.probe_timeout + 3 * self.spec.limits.proof_seconds,
                on_progress=self.watch.progressing,
            )  # fmt: skip
        assert not isinstance(finding.answer, Inspection)
        proof = judge(self.contender(score), finding.answer, finding.seconds, self.spec.limits)
        entry = ProofFinished(
            number=number,
            outcome=finding.answer,
            passed=proof.passed,
            why=proof.why,
            failed=tuple(check.name for check in proof.checks if not check.passed),
            seconds=finding.seconds,
        )
        self.journal.append(entry)
        self.watch.proved(entry)
        return entry

    def emit(self, score: Score, proved: ProofFinished) -> Best:
        """Write `best.yaml` with its proof, then journal the decision."""
        best = self.contender(score)
        best = best.model_copy(
            update={"proof": judge(best, proved.outcome, proved.seconds, self.spec.limits)}
        )
        self.write(self.paths.best, best)
        self.paths.contender.unlink(missing_ok=True)
        self.journal.append(Decided(winner=score.trial.number, why=proved.why, time=_now()))
        return best

    def contender(self, score: Score) -> Best:
        """Return what `best.yaml` says of a trial, before its proof."""
        inspected = self.journal.record.inspection
        assert inspected is not None
        variables = self.executor.environment(score.trial.candidate)
        return contender(self.spec, self.paths.id, score, inspected.facts, self.executor.facts, variables)

    def write(self, path: Path, best: Best) -> None:
        """Write a configuration whole or not at all. Raises JournalError when the disk refuses."""
        try:
            write_atomically(path, best.to_yaml())
        except OSError as error:
            raise JournalError(f"{path} cannot be written: {error.strerror}") from error

    def nothing_fits(self, scope: Scope, done: Done) -> AutotuneError:
        """Return the error that says what came nearest, and how much is missing."""
        history = self.journal.record.history
        nearest = missing(history, scope)
        if nearest is None:
            why = f"no configuration trained: {done.why}"
            error: AutotuneError = NothingFits(why)
        else:
            trial, lacking = nearest
            amount = f"at least {format_bytes(lacking)} more" if lacking else "more memory"
            spared = f", with {scope.goal.headroom:.0%} kept free as headroom" if scope.goal.headroom else ""
            why = (
                f"nothing fits {format_bytes(scope.budget)}{spared}. The nearest was {trial.candidate.title()} at "
                f"micro-batch {trial.candidate.micro_batch}, which needs {amount}. Give the device more memory, "
                "or choose a smaller model, a shorter --seq-len or --optimizer sgd"
            )
            if done.why.startswith("stopped"):
                why += f". The search was {done.why}: allow more probes to try the rungs below"
            error = NothingFits(why)
        self.journal.append(Decided(winner=None, why=why, time=_now()))
        return error


def _inspection_failed(outcome: Outcome, budget: int) -> AutotuneError:
    match outcome:
        case Crash(message=message, traceback=traceback):
            return ModelError(f"the model cannot be built: {message}", traceback)
        case Oom(phase="start"):
            return InputError(
                f"a budget of {format_bytes(budget)} is smaller than what torch and transformers themselves need"
            )
        case Oom(requested=requested):
            wanted = f" ({format_bytes(requested)} were asked for)" if requested else ""
            return NothingFits(f"the model cannot even be built within {format_bytes(budget)}{wanted}")
        case Unsupported(reason=reason):
            return InputError(reason)
        case _:
            return ModelError(f"the model could not be looked at: {outcome.kind}")


def _stop_at_crash(trial: Trial, history: tuple[Trial, ...]) -> None:
    """Raise ModelError when a probe crashed before anything worked: descending the ladder cannot mend a bug."""
    if isinstance(trial.outcome, Crash) and not any(isinstance(t.outcome, Ok) for t in history):
        raise ModelError(
            f"probe {trial.number} ({trial.candidate.title()}, micro-batch {trial.candidate.micro_batch}) failed in "
            f"{trial.outcome.phase}: {trial.outcome.message}",
            trial.outcome.traceback,
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
