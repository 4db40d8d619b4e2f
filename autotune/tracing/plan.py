"""Which candidates need a trace of their own, and which are composed of others'."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from autotune.candidate import PASSES, Candidate, alike


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
