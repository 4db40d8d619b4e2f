"""What a run may take from earlier ones instead of probing: results that say the same. Finals and proofs never do."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from autotune.candidate import Candidate
from autotune.outcome import Outcome
from autotune.racing import Incumbent
from autotune.site import Site


class Reused(NamedTuple):
    """A verdict that another run came to."""

    outcome: Outcome
    source: str
    """That night and run, for people."""


class EarlierMeasurements(Protocol):
    """What earlier runs measured."""

    def find(
        self, candidate: Candidate, accumulation_steps: int, site: Site, to_beat: Incumbent | None
    ) -> Reused | None:
        """Return what a probe of a candidate would come to at a place, where an earlier one says it; else None.

        `to_beat` is what a probe may be stopped for (`racing`): a bound is taken only where it is slower than this.
        """
        ...
