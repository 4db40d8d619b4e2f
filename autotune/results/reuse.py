"""Trials as a cache: what earlier nights measured of the very same, within a stated age."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from autotune.candidate import Candidate
from autotune.outcome import Ok, Oom, Outcome
from autotune.racing import Incumbent
from autotune.results.reuse_key import environment_of, reuse_key
from autotune.results.store import Known, Store
from autotune.run.reuse import Reused
from autotune.site import Site
from autotune.specs import RunSpec


class StoredTrials:
    """The trials of a store, for the probes of one run (`run.reuse.EarlierMeasurements`)."""

    def __init__(self, store: Store, spec: RunSpec, seconds: float, until: datetime | None = None) -> None:
        """`seconds` is the age of what is taken, at most, at a moment: by default the one at which this is made."""
        self._store = store
        self._spec = spec
        self._since = since(seconds, until)

    def find(
        self, candidate: Candidate, accumulation_steps: int, site: Site, to_beat: Incumbent | None
    ) -> Reused | None:
        """Return what a probe of a candidate would come to, where one of the same model, goal and environment says it.

        What is predicted or replayed costs nothing, and is never taken.
        """
        if site.device.evidence != "measured":
            return None
        key = reuse_key(
            self._spec.model, candidate, self._spec.goal, accumulation_steps, environment_of(site)
        )
        known = self._store.find_trial(key, self._since)
        if known is None or (outcome := holds(known, site.device.budget, to_beat)) is None:
            return None
        return Reused(outcome, f"{known.run} (night {known.night}, probe {known.number})")


def since(seconds: float, until: datetime | None = None) -> str:
    """Return the moment so many seconds before another (by default now), as a store has it."""
    return ((until or datetime.now(UTC)) - timedelta(seconds=seconds)).isoformat(timespec="seconds")


def holds(known: Known, budget: int, to_beat: Incumbent | None) -> Outcome | None:
    """Return a trial's verdict under another budget, and against another incumbent; None where it says nothing of them.

    What took so many bytes takes them under any budget that has them; what was refused is refused under one that is not
    larger. A probe that was stopped because it could not win says that of an incumbent alone that is no slower.
    """
    match known.outcome:
        case Ok(memory=memory, bound=bound) as outcome:
            if memory.peak() > budget:
                return None
            if bound is not None and (to_beat is None or bound.seconds <= to_beat.seconds):
                return None
            return outcome.model_copy(update={"memory": memory.model_copy(update={"budget": budget})})
        case Oom() as outcome:
            return outcome if budget <= known.budget else None
    return None
