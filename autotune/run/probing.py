"""One probe of a run, from its request to its verdict in the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.candidate import Candidate
from autotune.executors.executor import ProbeResult
from autotune.outcome import Lost
from autotune.prediction import Prediction
from autotune.probe.protocol import Inspection, ProbeKind, ProbeRequest
from autotune.run.events import Finished, Started
from autotune.run.failure import lost_with_tuner
from autotune.run.journal import now
from autotune.run.preflight import Preflight
from autotune.run.reuse import EarlierMeasurements, Reused
from autotune.run.stage import Stage
from autotune.search.context import SearchContext
from autotune.search.incumbent import incumbent
from autotune.search.strategy import Try
from autotune.site import Site
from autotune.specs import RunSpec
from autotune.trial import TRIES


def probe_request(
    spec: RunSpec, site: Site, context: SearchContext | None, candidate: Candidate, kind: ProbeKind
) -> ProbeRequest:
    """Return the request for a candidate at a run's goal; without a `context` the model is not known yet."""
    steps = 1
    if context is not None:
        steps = context.batches(candidate).steps(candidate.micro_batch)
    model = (spec.model.traced_as or spec.model) if kind == "trace" else spec.model
    return ProbeRequest(
        kind=kind, model=model, candidate=candidate, seq_len=spec.goal.seq_len, lengths=spec.goal.lengths,
        accumulation_steps=steps, device=site.device.torch_name,
        world_size=spec.goal.gpus if candidate.distributed else 1,
        nodes=spec.goal.nodes if candidate.distributed else 1,
        budget=site.device.budget, seed=spec.seed, tokens_per_sample=_counted(spec, context),
        energy=kind == "train" and spec.goal.objective.name == "energy",
        sample_seconds=spec.limits.sample_time, sample_steps=spec.limits.sample_steps, folder="",
    )  # fmt: skip


def _counted(spec: RunSpec, context: SearchContext | None) -> int | None:
    """Return the tokens that each row of a command counts for in the global batch; None where that is in samples."""
    if context is None or spec.model.command is None or spec.goal.target.unit != "tokens":
        return None
    return context.tokens_per_sample


@dataclass
class Probing(Stage):
    """Probes the candidates of one run, each to its verdict."""

    context: SearchContext
    preflight: Preflight
    request: Callable[[Candidate, ProbeKind], ProbeRequest]
    """Returns the request for a candidate at the run's goal."""
    expected: Callable[[Candidate], Prediction | None]
    """Returns what the models expect a probe to measure; None where the run has none."""
    recorded: EarlierMeasurements | None = None
    """What earlier runs measured, where that may stand for a probe; None where everything is measured."""

    def attempt(self, number: int, decision: Try, ahead: int) -> None:
        """Probe a candidate to its verdict.

        A try that something outside ends says nothing: it is repeated, up to TRIES times, those of earlier starts of
        the tuner included.
        """
        self.callbacks.trying(number, decision, ahead)
        while (trial := self.journal.record.trial(number)) is None:
            if self.journal.record.tries("probe", number) < TRIES:
                self.try_once(number, decision, ahead)
            else:
                gone = Finished(number=number, outcome=lost_with_tuner("probe"), seconds=0.0)
                self.journal.append(gone)
        self.callbacks.tried(trial)

    def try_once(self, number: int, decision: Try, ahead: int) -> None:
        """Journal, launch, journal."""
        candidate = decision.candidate
        expected = self.expected(candidate)
        known = self.known(candidate)
        why = decision.why if known is None else f"{decision.why}; measured by {known.source}"
        with self.journal.doing("probe", number):
            self.journal.append(
                Started(
                    number=number, candidate=candidate, node=decision.node, why=why, time=now(),
                    prediction=expected, path=decision.path, ahead=ahead,
                )
            )  # fmt: skip
            if known is not None:
                self.journal.append(
                    Finished(number=number, outcome=known.outcome, seconds=0.0, reused=known.source)
                )
                return
            finding = self.probe(number, candidate)
            assert not isinstance(finding.answer, Inspection)
            site = None if finding.site == self.site else finding.site
            self.journal.append(
                Finished(
                    number=number, outcome=finding.answer, seconds=finding.seconds, variables=finding.variables,
                    site=site, written=finding.written,
                )
            )  # fmt: skip
        if isinstance(finding.answer, Lost):
            self.callbacks.lost("probe", number, finding.answer)

    def known(self, candidate: Candidate) -> Reused | None:
        """Return what an earlier run measured of a candidate, where that may stand for a probe of it."""
        if self.recorded is None or self.preflight.refusal(candidate) is not None:
            return None
        steps = self.context.batches(candidate).steps(candidate.micro_batch)
        to_beat = incumbent(self.journal.record.history, self.context)
        return self.recorded.find(candidate, steps, self.site, to_beat)

    def probe(self, number: int, candidate: Candidate) -> ProbeResult:
        """Run one candidate, unless it can be refused without running it; no longer than it may still be the best."""
        if refused := self.preflight.refusal(candidate):
            return ProbeResult(answer=refused.verdict(), seconds=0.0)
        to_beat = incumbent(self.journal.record.history, self.context)
        return self.executor.run(
            self.request(candidate, "train").model_copy(update={"to_beat": to_beat}), self.paths.probe(number),
            timeout=self.spec.limits.probe_timeout, on_progress=self.callbacks.progressing,
        )  # fmt: skip
