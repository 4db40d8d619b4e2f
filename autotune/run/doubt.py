"""Whether a winner that held is proven once more, because of what somebody knows of earlier runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autotune.run.best import Best


class Doubt(Protocol):
    """What somebody expects of a run's winner. Asked again of the same it answers the same: runs are resumed."""

    def of(self, best: Best, speeds: Sequence[float]) -> bool:
        """Tell whether a winner is to be proven again; else the run is decided.

        `best` says what it measured, `speeds` are the tokens per second of each of its proofs so far, in order.
        """
        ...
