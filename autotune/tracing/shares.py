"""Which worker traces what, so that all are done at about the same time.

What a trace takes is told in passes: those of a small trace, forward and backward at each of three micro-batches, on
tensors without data. The constants are of traces of gpt2-xl and llama-3.1-8b, where these took 0.5 to 0.6 s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from autotune.candidate import ON_ONE_MODEL, Candidate, alike
from autotune.techniques.check import packages
from autotune.techniques.sharding import IN_SHARDS

COMPILER = 3.0
"""What importing the compiler takes a worker."""
COMPILING = 12.0
"""What compiling a block takes; others that compile it alike find it."""
BUILDING = 1.0
"""What building a model takes."""
SHARDING = 3.0
"""What it takes where FSDP2 shards the model."""
GATHERED = 1.6
"""How many times as long passes take where FSDP2 gathers parameters."""
REPLICATED = 2.0
"""How many times as long under DDP, through all of a model's blocks."""
MOVED = 2.0
"""How many times as long where activations leave the device, through more of the blocks."""
DONOR = 5.0
"""What tracing over parameters that are new to a worker takes besides: a model of its own, and the optimizer."""
UPDATE = 0.3
"""What tracing another optimizer over the same passes takes."""
APART = 5.0
"""What tracing it takes where gradients leave the device: a model of its own, its passes, and the optimizer."""


class _Group(NamedTuple):
    """Candidates with the same passes, and what of their traces is shared with others'."""

    candidates: tuple[Candidate, ...]
    cost: float
    """What nothing is shared of."""
    donor: Candidate
    """Shared by those over whose parameters an optimizer is traced once."""
    model: Candidate
    """Shared by those that are traced on one model."""
    compiled: Candidate
    """Shared by those whose blocks are compiled alike; of others, by those on one model."""
    refused: bool
    """Whether a package is missing, so that nothing is traced."""


def shares(candidates: Sequence[Candidate], workers: int) -> list[list[Candidate]]:
    """Divide candidates among at most so many workers, as evenly as may be.

    What is alike is traced together, and what runs on the same model, which is built, and its block compiled, once; if
    that is even, also what has the same parameters, over which an optimizer is traced once. In a share those come first
    whose optimizers are traced: they serve the others.
    """
    workers = max(1, workers)
    clusters: dict[Candidate, list[_Group]] = {}
    for members in alike(candidates):
        group = _group(members)
        clusters.setdefault(group.compiled, []).append(group)
    even = sum(map(_load, clusters.values())) / workers
    parts = [
        part
        for cluster in clusters.values()
        for part in (_parts(cluster, math.ceil(_load(cluster) / even)) if even else [cluster])
    ]
    divided = _divided(parts, workers)
    models = list(dict.fromkeys(map(_model, candidates)))

    def order(group: _Group) -> tuple[bool, int, int]:
        """Donors first, then by models, which are built anew for passes through more blocks than those before."""
        return len(group.candidates) == 1, models.index(group.model), -_blocks_more(group.candidates[0])

    ordered = (sorted((group for part in share for group in part), key=order) for share in divided)
    return [[one for group in share for one in group.candidates] for share in ordered if share]


def _divided(parts: Sequence[Sequence[_Group]], workers: int) -> list[list[Sequence[_Group]]]:
    """Give each part, the largest first, to who has least with it; then move parts while that makes it more even."""
    divided: list[list[Sequence[_Group]]] = [[] for _ in range(workers)]
    for part in sorted(parts, key=_load, reverse=True):
        min(divided, key=lambda share: _load_of([*share, part])).append(part)
    while better := _moved(divided):
        divided = better
    return divided


def _moved(divided: Sequence[list[Sequence[_Group]]]) -> list[list[Sequence[_Group]]] | None:
    """Return the shares after the one move, of a part or of two against each other, that helps most; None if none does.

    What counts is the largest share, then the sum: what two shares both build or compile is in it twice.
    """
    most = max(range(len(divided)), key=lambda index: _load_of(divided[index]))
    best, found = _unevenness(divided), None
    for other in range(len(divided)):
        for mine in range(len(divided[most]) if other != most else 0):
            for theirs in range(-1, len(divided[other])):
                tried = [list(share) for share in divided]
                tried[other].append(tried[most].pop(mine))
                if theirs >= 0:
                    tried[most].append(tried[other].pop(theirs))
                if (reached := _unevenness(tried)) < best:
                    best, found = reached, tried
    return found


def _unevenness(divided: Sequence[Sequence[Sequence[_Group]]]) -> tuple[float, float]:
    loads = [round(_load_of(share), 6) for share in divided]
    return max(loads), sum(loads)


def _parts(cluster: Sequence[_Group], count: int) -> list[Sequence[_Group]]:
    """Divide what runs on one model, which is then built several times; not where its block would be compiled so."""
    compiled = cluster[0].candidates[0].compile != "none"
    count = 1 if compiled else max(1, min(count, len(cluster)))
    return [cluster[first::count] for first in range(count)]


def _load_of(share: Sequence[Sequence[_Group]]) -> float:
    return _load([group for part in share for group in part])


def _load(groups: Sequence[_Group]) -> float:
    """Return what one worker takes to trace groups."""
    groups = [group for group in groups if not group.refused]
    compiled = {group.compiled for group in groups if group.compiled.compile != "none"}
    return (
        (COMPILER if compiled else 0.0)
        + COMPILING * len(compiled)
        + sum(SHARDING if _gathered(one) else BUILDING for one in {group.model for group in groups})
        + sum(DONOR * _pace(one) for one in {group.donor for group in groups})
        + sum(group.cost for group in groups)
    )


def _group(candidates: tuple[Candidate, ...]) -> _Group:
    first, *others = candidates
    apart = sum(one.offload == "gradients" for one in others)
    pace = _pace(first)
    updates = UPDATE * (len(others) - apart) + APART * apart
    model = _model(first)
    compiled = model
    if model.compile != "none" and _gathered(model):
        compiled = model.model_copy(update={"sharding": "fsdp2", "offload": "none"})
    cost = pace * ((MOVED if first.activation_offload else 1.0) + updates)
    refused = None in packages(first).values()
    return _Group(candidates, cost, first.with_plainest_passes(), model, compiled, refused)


def _blocks_more(candidate: Candidate) -> int:
    """Return through how many more blocks passes are traced where activations leave the device (`Shortening`)."""
    if not candidate.activation_offload:
        return 0
    return 1 if candidate.checkpointing == "none" else 2


def _pace(candidate: Candidate) -> float:
    """Return how many times as long passes take for how parameters lie."""
    if _gathered(candidate):
        return GATHERED
    return REPLICATED if candidate.sharding == "ddp" else 1.0


def _gathered(candidate: Candidate) -> bool:
    """Tell whether FSDP2 gathers a block's parameters."""
    return candidate.sharding in IN_SHARDS or candidate.offload == "full"


def _model(candidate: Candidate) -> Candidate:
    """Return what candidates share whose passes are traced on one model."""
    plain = {name: Candidate.model_fields[name].default for name in ON_ONE_MODEL}
    return candidate.with_plainest_optimizer().model_copy(update=plain)
