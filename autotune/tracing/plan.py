"""Which candidates need a trace of their own, and which are composed of others'; and who traces what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from autotune.candidate import Candidate, alike

UPDATE_SHARE = 0.3
"""What tracing another optimizer over the same passes takes of what these take."""


COMPILING = 8.0
"""What compiling a block takes of what a trace of passes does; others that compile it alike find it."""


class Pieces(NamedTuple):
    """Of whose traces a candidate's is composed (`autotune.timeline.composed`)."""

    passes: Candidate
    """It has the same forward and backward."""
    plain: Candidate
    """The donor with the optimizer of `passes`."""
    donor: Candidate
    """It has the same optimizer."""


def composable(candidates: Iterable[Candidate]) -> dict[Candidate, Pieces]:
    """Return which of the candidates can be composed of traces of the others: each optimizer is traced once."""
    found: dict[Candidate, Pieces] = {}
    donors: dict[tuple[Candidate, tuple[object, ...]], tuple[Candidate, Candidate]] = {}
    for plainest, *others in alike(candidates):
        parameters = plainest.with_plainest_passes()
        for candidate in others:
            optimizer = tuple((name, value) for name, value in candidate if value != getattr(plainest, name))
            known = donors.setdefault((parameters, optimizer), (plainest, candidate))
            if known[1] != candidate:
                found[candidate] = Pieces(plainest, *known)
    return found


def shares(candidates: Sequence[Candidate], workers: int) -> list[list[Candidate]]:
    """Divide candidates among at most so many workers, as evenly as may be.

    What is alike is traced together, and what compiles the same block.
    """
    divided: list[list[Candidate]] = [[] for _ in range(max(1, workers))]
    loads = [0.0] * len(divided)
    clusters: dict[Candidate, list[Candidate]] = {}
    for group in sorted(alike(candidates), key=len, reverse=True):
        clusters.setdefault(_compiled(group[0]), []).extend(group)

    def load(first: Candidate, cluster: Sequence[Candidate]) -> float:
        passes = len({one.with_plainest_optimizer() for one in cluster})
        compiling = COMPILING if first.compile != "none" else 0.0
        return compiling + passes + UPDATE_SHARE * (len(cluster) - passes)

    by_load = sorted(((load(*item), item[1]) for item in clusters.items()), key=lambda one: -one[0])
    for cost, cluster in by_load:
        least = loads.index(min(loads))
        divided[least].extend(cluster)
        loads[least] += cost
    return [share for share in divided if share]


def _compiled(candidate: Candidate) -> Candidate:
    """Return what candidates share whose blocks are compiled alike; of others, those with the same passes."""
    plainest = candidate.with_plainest_optimizer()
    if candidate.compile == "none":
        return plainest
    passes = {
        name: Candidate.model_fields[name].default for name in ("checkpointing", "loss", "activation_offload")
    }
    return plainest.model_copy(update={**passes, "checkpointed_blocks": "all"})
