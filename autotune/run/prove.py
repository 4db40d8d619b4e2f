"""The end of a run: the best candidate is relaunched from its emitted file, and `best.yaml` says what held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import JournalError, NoDiskSpace, NothingProven
from autotune.executors.executor import ProbeResult
from autotune.json_schema import reference, schema_name, written_text
from autotune.outcome import Drift, Lost, Ok
from autotune.probe.folder import write_atomically
from autotune.probe.protocol import Inspection
from autotune.run.best import BEST_TITLE, Best
from autotune.run.disk_use import written_bytes
from autotune.run.doubt import Doubt
from autotune.run.events import Decided, Offer, ProofStarted
from autotune.run.failure import holes, lost_with_tuner, no_winner, proofs_crashed
from autotune.run.finals import Finals
from autotune.run.journal import now
from autotune.run.proof import allowing_more, judge, proof_request, standing
from autotune.run.stage import Stage
from autotune.run.write_best import chosen, compared
from autotune.search.context import SearchContext
from autotune.search.selection import Choice, Score, choose, rank, throughput
from autotune.search.strategy import Done
from autotune.search.wording import BEST_IN
from autotune.trial import TRIES, ProofFinished
from autotune.units import format_bytes


@dataclass
class Proving(Stage):
    """Proves the finalists of one run, the best by its objective first, until one holds."""

    finalist: Callable[[Score, Drift], Best]
    """Returns what `best.yaml` says of a trial, before its proof."""
    survey: Callable[[Score], None]
    """Journals what is predicted around the winner, before the decision is."""
    offers: Callable[[Done], tuple[Offer, ...]]
    """Returns what would fit by consent alone."""
    finals: Finals
    """Settle what the search left open; again after a proof that did not show what was recorded."""
    doubt: Doubt | None = None
    """Has a winner that held proven again."""

    def prove(self, context: SearchContext, done: Done) -> Best:
        """Relaunch the best from its emitted file; where that does not hold, what is then the best."""
        if not rank(self.journal.record.history, context):
            record = self.journal.record
            offers = self.offers(done)
            along_graph = self.spec.strategy == "graph"
            error, causes = no_winner(record.history, context, done, record.unknown, offers, along_graph)
            self.journal.append(
                Decided(winner=None, why=error.headline, causes=causes, offers=offers, time=now())
            )
            raise error
        if self.site.device.evidence != "measured":
            return self.emit_unproven(context)
        while (remaining := self.settled(context))[0]:
            held = [proof.number for proof in self.journal.record.proofs if proof.passed]
            choice = choose(remaining[0], held, context.goal.objective)
            proven = choice.by == "proof" or self.held(choice.winner)
            if proven and not self.doubted(choice.winner, remaining[1]):
                return self.emit(context, choice, remaining[1])
            self.prove_one(choice.winner, remaining[1])
        failed = "; ".join(f"probe {proof.number}: {proof.why}" for proof in self.journal.record.proofs)
        self.journal.append(Decided(winner=None, why=failed, time=now()))
        if (crashed := proofs_crashed(self.journal.record.proofs)) is not None:
            raise crashed
        hole = holes(self.journal.record.unknown)
        raise NothingProven(
            f"configurations fitted, but none held when relaunched. {failed}"
            f"{allowing_more(self.journal.record.proofs)}{hole and f'. And {hole}'}"
        )

    def settled(self, context: SearchContext) -> tuple[list[Score], Drift]:
        """Return the same as `standing`, once the finals are over."""
        self.finals.play(context)
        return self.standing(context)

    def standing(
        self, context: SearchContext, before: ProofFinished | None = None
    ) -> tuple[list[Score], Drift]:
        """Return what is in the running, best first, and the drift between measurements; as it was `before` a proof."""
        record = self.journal.record
        proofs = record.proofs if before is None else record.proofs[: record.proofs.index(before)]
        return standing(record.history, proofs, context, record.rematches)

    def held(self, score: Score) -> bool:
        """Tell whether a trial's proof held."""
        return any(
            proof.passed and proof.number == score.trial.number for proof in self.journal.record.proofs
        )

    def doubted(self, winner: Score, drift: Drift) -> bool:
        """Tell whether a winner that held is proven once more. What failed a proof since is not: that says enough."""
        proofs = [proof for proof in self.journal.record.proofs if proof.number == winner.trial.number]
        if self.doubt is None or not all(proof.passed for proof in proofs):
            return False
        speeds = [
            throughput(proof.outcome.timing, winner.accumulation)[1]
            for proof in proofs
            if isinstance(proof.outcome, Ok) and proof.outcome.timing is not None
        ]
        return self.doubt.of(self.finalist(winner, drift), speeds)

    def prove_one(self, score: Score, drift: Drift) -> ProofFinished:
        """Write the finalist's file, read it back, and run what it says."""
        number, before = score.trial.number, len(self.journal.record.proofs)
        self.write(self.paths.finalist, self.finalist(score, drift))
        self.callbacks.proving(score)
        while len(self.journal.record.proofs) == before:  # a try that something outside ended proves nothing
            if self.journal.record.tries("proof", number) < TRIES:
                self.relaunch(score, drift)
            else:
                self.journal.append(
                    self.judged(score, drift, ProbeResult(answer=lost_with_tuner("proof"), seconds=0.0))
                )
        proof = self.journal.record.proofs[-1]
        self.callbacks.proved(proof)
        return proof

    def relaunch(self, score: Score, drift: Drift) -> None:
        """Journal, launch, journal."""
        number = score.trial.number
        emitted = Best.read(self.paths.finalist)
        self.look_for_room(number, emitted)
        with self.journal.doing("proof", number):
            self.journal.append(ProofStarted(number=number, time=now()))
            finding = self.executor.run(
                proof_request(
                    emitted, self.spec.limits.proof_time, energy=self.spec.goal.objective.name == "energy"
                ),
                self.paths.proof(number),
                timeout=self.spec.limits.probe_timeout + 3 * self.spec.limits.proof_time,
                on_progress=self.callbacks.progressing,
            )  # fmt: skip
            self.journal.append(self.judged(score, drift, finding))
        if isinstance(finding.answer, Lost):
            self.callbacks.lost("proof", number, finding.answer)

    def look_for_room(self, number: int, emitted: Best) -> None:
        """Raise NoDiskSpace where the disk has no room for what the proof writes."""
        folder, facts = self.paths.proof(number), self.site.device
        needed = written_bytes(emitted, facts.kind)
        free = self.executor.offload_room(folder, "disk") * (
            emitted.gpus if emitted.candidate.distributed else 1
        )
        if needed > free:
            raise NoDiskSpace(
                f"the proof of probe {number} writes {format_bytes(needed)} (a checkpoint, and what lives in files), "
                f"and the disk of {folder} has {format_bytes(free)} free; make room there"
            )

    def judged(self, score: Score, drift: Drift, finding: ProbeResult) -> ProofFinished:
        """Return the line for the journal that says what a relaunch showed."""
        assert not isinstance(finding.answer, Inspection)
        proof = judge(self.finalist(score, drift), finding.answer, finding.seconds, self.spec.limits)
        return ProofFinished(
            number=score.trial.number,
            outcome=finding.answer,
            passed=proof.passed,
            why=proof.why,
            failed=tuple(check.name for check in proof.checks if not check.passed),
            seconds=finding.seconds,
            site=None if finding.site == self.site else finding.site,
            written=finding.written,
        )

    def emit(self, context: SearchContext, choice: Choice, drift: Drift) -> Best:
        """Write `best.yaml` as its proof measured it, then journal the decision.

        The proof's checks are against what had been recorded before it.
        """
        self.survey(choice.winner)
        record, number = self.journal.record, choice.winner.trial.number
        proved = next(proof for proof in reversed(record.proofs) if proof.passed and proof.number == number)
        scores, drift_before = self.standing(context, before=proved)
        recorded = next(score for score in scores if score.trial.number == number)
        proof = judge(self.finalist(recorded, drift_before), proved.outcome, proved.seconds, self.spec.limits)
        best = chosen(self.finalist(choice.winner, drift), choice).model_copy(
            update={
                "proof": proof.model_copy(update={"passed": True, "why": proved.why}),
                "unknown": record.unknown,
                "finals": compared(choice.winner, self.standing(context)[0]),
            }
        )
        self.write(self.paths.best, best)
        self.paths.finalist.unlink(missing_ok=True)
        self.journal.append(Decided(winner=number, why=proved.why, time=now()))
        return best

    def emit_unproven(self, context: SearchContext) -> Best:
        """Write `best.yaml` without a proof, where there is no device to prove it on."""
        scores, drift = self.standing(context)
        choice = choose(scores, objective=context.goal.objective)
        self.survey(choice.winner)
        best = chosen(self.finalist(choice.winner, drift), choice)
        best = best.model_copy(update={"unknown": self.journal.record.unknown})
        self.write(self.paths.best, best)
        simulated = self.site.device.simulated
        best_in = BEST_IN[context.goal.objective.name]
        why = (
            f"predicted to be {best_in} that fits; a simulated device proves nothing"
            if simulated
            else f"{best_in} of the record that fits; a replay proves nothing"
        )
        self.journal.append(Decided(winner=choice.winner.trial.number, why=why, time=now()))
        return best

    def write(self, path: Path, best: Best) -> None:
        """Write a configuration and its schema, each whole or not at all. Raises JournalError when the disk refuses."""
        try:
            write_atomically(path.with_name(schema_name("best")), written_text(Best, BEST_TITLE))
            write_atomically(path, reference("best") + best.to_yaml())
        except OSError as error:
            raise JournalError(f"{path} cannot be written: {error.strerror}", "unwritable") from error
