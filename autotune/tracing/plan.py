"""Which candidates need a trace of their own, and which are composed of others'; and who traces what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from autotune.candidate import Candidate, alike

PASSES: tuple[str, ...] = (
    "attention", "checkpointing", "checkpointed_blocks", "loss", "compile", "activation_memory_budget", "kernels",
    "activation_offload",
)  # fmt: skip
"""The axes that change forward and backward, and leave parameters and gradients as they are."""
UPDATE_SHARE = 0.3
"""What tracing another optimizer over the same passes takes of what these take."""


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
        parameters = _without_passes(plainest)
        for candidate in others:
            optimizer = tuple((name, value) for name, value in candidate if value != getattr(plainest, name))
            known = donors.setdefault((parameters, optimizer), (plainest, candidate))
            if known[1] != candidate:
                found[candidate] = Pieces(plainest, *known)
    return found


def shares(candidates: Sequence[Candidate], workers: int) -> list[list[Candidate]]:
    """Divide candidates among at most so many workers, as evenly as may be; what is alike is traced together."""
    divided: list[list[Candidate]] = [[] for _ in range(max(1, workers))]
    loads = [0.0] * len(divided)
    for group in sorted(alike(candidates), key=len, reverse=True):
        least = loads.index(min(loads))
        divided[least].extend(group)
        loads[least] += 1 + UPDATE_SHARE * (len(group) - 1)
    return [share for share in divided if share]


def _without_passes(candidate: Candidate) -> Candidate:
    defaults = {name: Candidate.model_fields[name].default for name in PASSES}
    return candidate.model_copy(update=defaults)
