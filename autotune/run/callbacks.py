"""What a run tells whoever looks on: the terminal, or nobody."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.candidate import Candidate
from autotune.outcome import Lost
from autotune.probe.protocol import Progress
from autotune.run.events import RungTraced
from autotune.run.record import Counted
from autotune.search.context import SearchContext
from autotune.search.finals import Rematch
from autotune.search.selection import Score
from autotune.search.strategy import Done, Skip, Try
from autotune.specs import ModelFacts
from autotune.trial import History, ProofFinished, RematchFinished, Trial


class RunCallbacks:
    """Told of every event of a run, in order; does nothing of itself. Subclass it and override what you want to hear.

    What overrides must not raise, and must not change anything.
    """

    def inspecting(self) -> None:
        """Say that a worker looks at the model."""

    def inspected(self, facts: ModelFacts, context: SearchContext, history: History) -> None:
        """Say what the model is; `history` holds the trials of an earlier start of this run."""

    def tracing(self, candidates: Sequence[Candidate]) -> None:
        """Say that a worker traces the rungs of candidates for the memory model."""

    def traced(self, entry: RungTraced) -> None:
        """Say what came of it."""

    def skipping(self, skip: Skip) -> None:
        """Say that a candidate is passed over by prediction."""

    @property
    def follows_ahead(self) -> bool:
        """Whether anybody hears how many probes are ahead: finding out takes longer than all else of a probe."""
        return type(self).trying is not RunCallbacks.trying

    def trying(self, number: int, attempt: Try, ahead: int) -> None:
        """Say that a probe is being launched, the first of about `ahead` still to come."""

    def progressing(self, progress: Progress) -> None:
        """Say that the worker entered a phase."""

    def tried(self, trial: Trial) -> None:
        """Say what a probe came to."""

    def lost(self, work: Counted, number: int, outcome: Lost) -> None:
        """Say that something outside ended a try of a probe, a rematch or a proof, which says nothing of it."""

    def searched(self, done: Done) -> None:
        """Say that the search is over."""

    def rematching(self, trial: Trial, rematch: Rematch) -> None:
        """Say that a finalist is measured again."""

    def rematched(self, rematch: RematchFinished) -> None:
        """Say what that came to."""

    def settled(self, why: str) -> None:
        """Say what the finals showed."""

    def proving(self, score: Score) -> None:
        """Say that a configuration is relaunched from its file."""

    def proved(self, proof: ProofFinished) -> None:
        """Say what the relaunch showed."""
