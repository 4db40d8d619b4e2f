"""Which candidates need a trace of their own, and which are composed of others'; and who traces what."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from autotune.candidate import ON_ONE_MODEL, PASSES, Candidate, alike
from autotune.techniques.check import packages
from autotune.techniques.sharding import IN_SHARDS

UPDATE_SHARE = 0.3
"""What tracing another optimizer over the same passes takes of what these take."""


COMPILING = 14.0
"""What compiling a block takes of what a trace of passes does; others that compile it alike find it."""


SHARDED = 1.4
"""How many times as long passes take where FSDP2 gathers parameters."""


SHARDING = 4.0
"""What building a model takes there; elsewhere it is as much as the passes of a small trace."""


MOVED = 2.0
"""How many times as long passes take whose activations leave the device: through more of the blocks."""


DONOR = 3.0
"""What tracing over parameters that a worker did not have before takes besides: it traces the optimizer too."""


class Pieces(NamedTuple):
    """Of whose traces a candidate's is composed (`autotune.timeline.composed`)."""

    passes: Candidate
    """It has the same forward and backward."""
    plain: Candidate
    """The donor with the optimizer of `passes`."""
    donor: Candidate
    """It has the same optimizer."""


class Halves(NamedTuple):
    """Of whose traces a candidate's passes are put together (`autotune.timeline.joined`)."""

    common: Candidate
    """It has the blocks of `rest` and the loss of `blocks`."""
    rest: Candidate
    """It has the same loss."""
    blocks: Candidate
    """It has the same blocks."""


class TracePlan(NamedTuple):
    """Which candidates need no trace of their own, and of what they are composed, in that order."""

    halves: dict[Candidate, Halves]
    replicas: dict[Candidate, Pieces]
    """Passes under DDP, of those of one device."""
    pieces: dict[Candidate, Pieces]
    helpers: tuple[Candidate, ...]
    """Those that nobody asked for, of which others are composed."""


def plan(candidates: Iterable[Candidate]) -> TracePlan:
    """Return which candidates can be composed of traces of the others.

    Each optimizer is traced once; and of the passes of a model each loss with one way to run blocks, and each way to
    run blocks with one loss.
    """
    groups = alike(candidates)
    plainest = [first for first, *_ in groups]
    replicas = _replicas(plainest)
    halves = _halves([one for one in plainest if one not in replicas])
    pieces: dict[Candidate, Pieces] = {}
    donors: dict[tuple[Candidate, tuple[object, ...]], tuple[Candidate, Candidate]] = {}
    traced: set[Candidate] = set()
    for first, *others in sorted(groups, key=lambda group: group[0] in halves or group[0] in replicas):
        parameters = first.with_plainest_passes()
        for candidate in others:
            optimizer = tuple((name, value) for name, value in candidate if value != getattr(first, name))
            known = donors.setdefault((parameters, optimizer), (first, candidate))
            if known[1] == candidate:  # it is traced, and its passes with it
                traced.add(first)
            else:
                pieces[candidate] = Pieces(first, *known)
    replicas = {one: those for one, those in replicas.items() if one not in traced}
    helpers = tuple(dict.fromkeys(one for those in replicas.values() for one in (those.passes, those.plain)))
    halves = _halves([*(one for one in plainest if one not in replicas), *helpers])
    halves = {one: those for one, those in halves.items() if one not in traced}
    return TracePlan(halves, replicas, pieces, helpers)


def _replicas(passes: Sequence[Candidate]) -> dict[Candidate, Pieces]:
    """Return which passes under DDP can be composed of those of one device, and one trace under DDP."""
    replicated: dict[Candidate, list[Candidate]] = {}
    for candidate in passes:
        if (
            candidate.sharding == "ddp"
            and candidate.has_separate_optimizer
            and candidate.tensor_parallel == 1
        ):
            replicated.setdefault(candidate.with_plainest_passes(), []).append(candidate)
    found: dict[Candidate, Pieces] = {}
    for those in replicated.values():
        donor = min(those, key=_techniques)
        alone = {candidate: candidate.model_copy(update={"sharding": "none"}) for candidate in those}
        found |= {one: Pieces(alone[one], alone[donor], donor) for one in those if one != donor}
    return found


def _halves(passes: Sequence[Candidate]) -> dict[Candidate, Halves]:
    """Return which passes can be put together of those of others."""
    known = set(passes)
    surroundings: dict[Candidate, list[Candidate]] = {}
    for candidate in passes:
        if candidate.engine == "torch" and not candidate.optimizer_in_backward:
            surroundings.setdefault(_with_plain(candidate, (*WITHIN_BLOCKS, "loss")), []).append(candidate)
    found: dict[Candidate, Halves] = {}
    for those in surroundings.values():
        # What is plainest in most fields is cheapest to trace.
        common = min(those, key=_techniques)
        for candidate in those:
            rest = common.model_copy(update={"loss": candidate.loss})
            blocks = candidate.model_copy(update={"loss": common.loss})
            if candidate not in {rest, blocks} and {rest, blocks} <= known:
                found[candidate] = Halves(common, rest, blocks)
    return found


def _techniques(candidate: Candidate) -> int:
    """Return how many fields of the passes are not at their defaults."""
    return sum(getattr(candidate, name) != Candidate.model_fields[name].default for name in PASSES)


def _with_plain(candidate: Candidate, names: Sequence[str]) -> Candidate:
    return candidate.model_copy(update={name: Candidate.model_fields[name].default for name in names})


WITHIN_BLOCKS = ("checkpointing", "checkpointed_blocks", "compile", "activation_memory_budget")
"""The fields that change what a model's blocks do, and nothing beside them."""


def shares(candidates: Sequence[Candidate], workers: int) -> list[list[Candidate]]:
    """Divide candidates among at most so many workers, as evenly as may be.

    What is alike is traced together, and what runs on the same model, which is built, and its block compiled, once; if
    that is even, also what has the same parameters, over which an optimizer is traced once. In a share those come first
    whose optimizers are traced: they serve the others.
    """
    clusters: dict[Candidate, list[tuple[Candidate, ...]]] = {}
    for group in alike(candidates):
        clusters.setdefault(_compiled(group[0]), []).append(group)
    even = sum(map(_load, clusters.values())) / max(1, workers)
    parts = [
        part
        for cluster in clusters.values()
        for part in (_parts(cluster, math.ceil(_load(cluster) / even)) if even else [cluster])
    ]
    divided: list[list[tuple[Candidate, ...]]] = [[] for _ in range(max(1, workers))]
    for part in sorted(parts, key=_load, reverse=True):
        min(divided, key=lambda share: _load([*share, *part])).extend(part)
    models = list(dict.fromkeys(map(_model, candidates)))

    def order(group: tuple[Candidate, ...]) -> tuple[bool, int, bool]:
        """Donors first, then by models, on each those first whose passes run through most blocks."""
        return len(group) == 1, models.index(_model(group[0])), not group[0].activation_offload

    return [[one for group in sorted(share, key=order) for one in group] for share in divided if share]


def _parts(cluster: Sequence[tuple[Candidate, ...]], count: int) -> list[Sequence[tuple[Candidate, ...]]]:
    """Divide what runs on one model, which is then built several times; not where its block would be compiled so."""
    count = 1 if cluster[0][0].compile != "none" else max(1, min(count, len(cluster)))
    return [cluster[first::count] for first in range(count)]


def _load(groups: Sequence[tuple[Candidate, ...]]) -> float:
    """Return what one worker takes to trace groups, of what the passes of a small trace take."""
    plainest = [
        first for first, *_ in groups if None not in packages(first).values()
    ]  # others are refused at once
    compiled = {_compiled(one) for one in plainest if one.compile != "none"}
    models = {_model(one) for one in plainest}
    donors = {one.with_plainest_passes() for one in plainest}
    return (
        COMPILING * len(compiled)
        + sum(SHARDING if _sharded(one) else 1.0 for one in models)
        + sum(_pace(one) * (MOVED if one.activation_offload else 1.0) for one in plainest)
        + sum(DONOR * _pace(one) for one in donors)
        + UPDATE_SHARE * sum(len(group) - 1 for group in groups)
    )


def _pace(candidate: Candidate) -> float:
    """Return how many times as long passes take for how parameters lie."""
    return SHARDED if _sharded(candidate) else 1.0


def _sharded(candidate: Candidate) -> bool:
    """Tell whether FSDP2 gathers a block's parameters."""
    return candidate.sharding in IN_SHARDS or candidate.offload == "full"


def _compiled(candidate: Candidate) -> Candidate:
    """Return what candidates share whose blocks are compiled alike; of others, those that share a model."""
    model = _model(candidate)
    if candidate.compile == "none" or not _sharded(candidate):
        return model
    return model.model_copy(update={"sharding": "fsdp2", "offload": "none"})


def _model(candidate: Candidate) -> Candidate:
    """Return what candidates share whose passes are traced on one model."""
    plainest = candidate.with_plainest_optimizer()
    return _with_plain(plainest, ON_ONE_MODEL)
