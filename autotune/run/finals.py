"""The finals of one run: finalists are measured again, each to a verdict in the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.candidate import Candidate
from autotune.outcome import Lost, Outcome
from autotune.probe.protocol import Inspection, ProbeKind, ProbeRequest
from autotune.run.events import RematchStarted
from autotune.run.failure import lost_with_tuner
from autotune.run.journal import now
from autotune.run.proof import in_running
from autotune.run.stage import Stage
from autotune.search.context import SearchContext
from autotune.search.drift import drift_of
from autotune.search.finals import Rematch, Settled, next_rematch
from autotune.site import Site
from autotune.trial import TRIES, RematchFinished, Trial


@dataclass
class Finals(Stage):
    """Measures again, in alternation, what the search could not tell from the best."""

    request: Callable[[Candidate, ProbeKind], ProbeRequest]
    """Returns the request for a candidate at the run's goal."""
    _told: int | None = field(default=None, init=False)
    """After how many rematches it was said what the finals showed."""

    def play(self, context: SearchContext) -> None:
        """Measure finalists again until nothing is left to settle.

        What is predicted or replayed would come out the same, so there is nothing to do.
        """
        if self.site.device.evidence != "measured":
            return
        while isinstance(following := self.following(context), Rematch):
            self.measure(following)
        if following.why and self._told != len(self.journal.record.rematches):
            self.callbacks.settled(following.why)
            self._told = len(self.journal.record.rematches)

    def following(self, context: SearchContext) -> Rematch | Settled:
        """Return what is to be measured again, or what the finals showed."""
        record = self.journal.record
        running = in_running(record.history, record.rematches, record.proofs)
        drift = drift_of(record.history, (*record.rematches, *record.proofs), context)
        return next_rematch(running, record.rematches, context, drift)

    def measure(self, rematch: Rematch) -> None:
        """Measure one finalist to its verdict; a try that something outside ends is repeated, up to TRIES times."""
        trial, before = self.journal.record.trial(rematch.number), len(self.journal.record.rematches)
        assert trial is not None
        self.callbacks.rematching(trial, rematch)
        while len(self.journal.record.rematches) == before:
            if self.journal.record.tries("rematch", rematch.number) < TRIES:
                self.try_once(trial, rematch)
            else:
                self.journal.append(_finished(rematch, lost_with_tuner("rematch"), 0.0))
        self.callbacks.rematched(self.journal.record.rematches[-1])

    def try_once(self, trial: Trial, rematch: Rematch) -> None:
        """Journal, launch, journal."""
        with self.journal.doing("rematch", rematch.number):
            self.journal.append(
                RematchStarted(
                    number=rematch.number, round=rematch.round, finalists=rematch.finalists, time=now()
                )
            )
            finding = self.executor.run(
                self.request(trial.candidate, "train"), self.paths.rematch(rematch.number, rematch.round),
                timeout=self.spec.limits.probe_timeout, on_progress=self.callbacks.progressing,
            )  # fmt: skip
            assert not isinstance(finding.answer, Inspection)
            site = None if finding.site == self.site else finding.site
            self.journal.append(_finished(rematch, finding.answer, finding.seconds, site))
        if isinstance(finding.answer, Lost):
            self.callbacks.lost("rematch", rematch.number, finding.answer)


def _finished(
    rematch: Rematch, outcome: Outcome, seconds: float, site: Site | None = None
) -> RematchFinished:
    return RematchFinished(
        number=rematch.number, round=rematch.round, finalists=rematch.finalists, outcome=outcome, seconds=seconds,
        site=site,
    )  # fmt: skip
