"""Which candidates need a trace of their own, and which are composed of others'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from autotune.candidate import PASSES, Candidate, alike

_Ordered: TypeAlias = dict[Candidate, None]
"""Candidates, each once, in their order."""
_Optimizer: TypeAlias = tuple[tuple[str, object], ...]
_Donors: TypeAlias = dict[tuple[Candidate, _Optimizer], tuple[Candidate, Candidate]]
"""By the plainest passes over the parameters and the optimizer: passes, and the candidate that has it over them."""


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


def plan(candidates: Iterable[Candidate], known: Iterable[Candidate] = ()) -> TracePlan:
    """Return which candidates can be composed of traces of the others, and of `known`, whose traces are at hand.

    Each optimizer is traced once; and of the passes of a model each loss with one way to run blocks, and each way to
    run blocks with one loss. Passes with the plainest optimizer, that nobody asked for, are among the helpers where
    with them no more is traced than without.
    """
    wanted, known = dict.fromkeys(candidates), dict.fromkeys(known)
    return _planned({**wanted, **dict.fromkeys(_plainest_that_help(wanted, known))}, wanted, known)


def _planned(members: _Ordered, wanted: _Ordered, known: _Ordered) -> TracePlan:
    """Return the plan of `members`, some of which nobody asked for, with what is known."""
    groups = alike([*known, *members])
    plainest = [first for first, *_ in groups]
    replicas = _replicas(plainest, known)
    halves = _halves([one for one in plainest if one not in replicas])
    pieces: dict[Candidate, Pieces] = {}
    donors = _known_donors(groups, known)
    traced: set[Candidate] = set()
    # An optimizer is traced over passes that are traced.
    groups.sort(key=lambda group: group[0] in halves or group[0] in replicas)
    for first, *others in groups:
        parameters = first.with_plainest_passes()
        for candidate in others:
            if candidate in known:
                continue
            donor = donors.setdefault((parameters, _optimizer(candidate, first)), (first, candidate))
            if donor[1] == candidate:  # it is traced, and its passes with it
                traced.add(first)
            else:
                pieces[candidate] = Pieces(first, *donor)
    replicas = {one: those for one, those in replicas.items() if one not in traced}
    helpers = [one for one in members if one not in wanted]
    helpers += [one for those in replicas.values() for one in (those.passes, those.plain)]
    halves = _halves([*(one for one in plainest if one not in replicas), *helpers])
    halves = {one: those for one, those in halves.items() if one not in traced and one not in known}
    return TracePlan(
        halves, replicas, pieces, tuple(dict.fromkeys(one for one in helpers if one not in known))
    )


def _plainest_that_help(wanted: _Ordered, known: _Ordered) -> list[Candidate]:
    """Return passes with the plainest optimizer that nobody asked for, where to trace them costs no trace more.

    They serve whatever is asked for next.
    """
    families: dict[Candidate, list[Candidate]] = {}
    for candidate in (*known, *wanted):
        if candidate.has_separate_optimizer:
            parameters = candidate.with_plainest_optimizer().with_plainest_passes()
            families.setdefault(parameters, []).append(candidate)
    found: list[Candidate] = []
    for family in families.values():
        having = Counter(_optimizer(one, one.with_plainest_optimizer()) for one in family)
        asked, at_hand = (dict.fromkeys(one for one in family if one in those) for those in (wanted, known))
        lacking = dict.fromkeys(
            plainest
            for one in asked
            if (plainest := one.with_plainest_optimizer()) not in asked
            and plainest not in at_hand
            and having[_optimizer(one, plainest)] > 1
        )
        if lacking and _traces({**asked, **lacking}, asked, at_hand) <= _traces(asked, asked, at_hand):
            found += lacking
    return found


def _traces(members: _Ordered, wanted: _Ordered, known: _Ordered) -> int:
    """Return how many traces a plan of `members` takes."""
    planned = _planned(members, wanted, known)
    composed = planned.halves.keys() | planned.replicas.keys() | planned.pieces.keys()
    return len({*members, *planned.helpers} - composed - known.keys())


def _known_donors(groups: Iterable[tuple[Candidate, ...]], known: _Ordered) -> _Donors:
    """Return over whose passes an optimizer has been traced, and with which candidate, where both are at hand."""
    found: _Donors = {}
    for first, *others in groups:
        for candidate in others:
            if first in known and candidate in known:
                found.setdefault(
                    (first.with_plainest_passes(), _optimizer(candidate, first)), (first, candidate)
                )
    return found


def _optimizer(candidate: Candidate, plainest: Candidate) -> _Optimizer:
    """Return the fields by which a candidate's optimizer is another than the plainest."""
    return tuple((name, value) for name, value in candidate if value != getattr(plainest, name))


def _replicas(passes: Sequence[Candidate], known: _Ordered) -> dict[Candidate, Pieces]:
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
        donor = min(those, key=lambda one: (one not in known, _techniques(one)))
        alone = {candidate: candidate.model_copy(update={"sharding": "none"}) for candidate in those}
        found |= {
            one: Pieces(alone[one], alone[donor], donor) for one in those if one != donor and one not in known
        }
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
