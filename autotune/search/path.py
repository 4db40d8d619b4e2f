"""The path of a search: which steps it took through the decision graph, and how it ended."""

from __future__ import annotations

from typing import Literal

from autotune.candidate import Candidate
from autotune.validation import Frozen

SearchEnd = Literal["exhausted", "settled", "crashed", "max_probes", "time_budget"]
"""Why a search ended: the strategy had nothing left to try, or nothing left that could win, a bug was in the way, or
the limit of that name was spent."""


class Step(Frozen):
    """One step of the path through the decision graph: a node, and the edge by which it was left."""

    node: str
    edge: str
    candidate: Candidate
    """The candidate that decided: the one probed, or the largest that fits after growth."""
    evidence: Literal["measured", "predicted"] = "measured"
    """Whether a probe or the memory model says so."""
