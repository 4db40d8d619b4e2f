"""The one place that says why a candidate cannot run: for runs, estimates, workers and `autotune doctor` alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from operator import attrgetter
from typing import Any, NamedTuple

from autotune.candidate import AXES, Candidate, DeviceKind, choices
from autotune.environment import how_to_install, installed, look_around
from autotune.outcome import Cause, Unsupported
from autotune.site import MachineFacts
from autotune.techniques.axis import Axis, CheckFunction, Context, Rule, Value
from autotune.techniques.families import DECLARED
from autotune.techniques.sharding import SHARDINGS

INSTEAD = {"bf16": "fp16 or fp32", "fp8": "bf16"}
"""Precisions for devices that do not compute in a number type."""


@dataclass(frozen=True)
class Exclusion:
    """A rule, with the values of an axis that it belongs to."""

    axis: str
    values: tuple[Any, ...]
    rule: Rule
    numbers: bool = False
    """Whether it belongs to every number of an open axis too."""

    def covers(self, value: Any) -> bool:
        """Tell whether the rule belongs to a value of its axis."""
        return value in self.values or (self.numbers and type(value) is int)

    def broken_by(self, candidate: Candidate) -> bool:
        """Tell whether a candidate breaks the rule."""
        return self.covers(getattr(candidate, self.axis)) and self.rule.broken_by(candidate)


def _exclusions() -> Iterator[Exclusion]:
    """Return the rules of all techniques, in the order of their axes."""
    for axis in DECLARED:
        others = tuple(value for value in axis.values if value != axis.default)
        yield from (Exclusion(axis.name, others, rule, axis.number is not None) for rule in axis.rules)
        for name, value in axis.values.items():
            yield from (Exclusion(axis.name, (name,), rule) for rule in value.rules)
        if axis.number is not None:
            yield from (Exclusion(axis.name, (), rule, numbers=True) for rule in axis.number.rules)


RULES = tuple(_exclusions())
"""What holds in every search space, because the techniques themselves exclude each other."""


class _Asked(NamedTuple):
    """What a value of an axis asks of a candidate and of its context."""

    axis: str
    rules: tuple[Rule, ...]
    checks: tuple[CheckFunction, ...]
    value: Value
    anything: bool
    """Whether it asks anything of the context."""


@lru_cache(maxsize=None, typed=True)  # a search asks this of each of its candidates, on every axis
def _asked(name: str, chosen: Any) -> _Asked:
    """Return what a value of an axis asks, its rules in the order of `RULES`."""
    axis = axis_of(name)
    value = axis.declared(chosen)
    rules = tuple(one.rule for one in RULES if one.axis == name and one.covers(chosen))
    needs = bool(value.gpu_only or value.dtypes or value.packages or value.needs_compiler)
    return _Asked(name, rules, axis.checks, value, needs or bool(axis.checks))


_NAMES = tuple(axis.name for axis in DECLARED)
_chosen = attrgetter(*_NAMES)

_ANYWHERE = Context()


@dataclass(frozen=True)
class Refusal:
    """One reason why a candidate cannot run, for code and for people."""

    axis: str | None
    """The field of the candidate whose value is refused; None where it is no single one's."""
    cause: Cause
    others: tuple[str, ...]
    """The axes whose values exclude it, where the cause is `axes`."""
    reason: str
    """The sentence, with what to do instead."""

    def verdict(self) -> Unsupported:
        """Return what is journaled of a candidate that is refused so, without running it."""
        return Unsupported(reason=self.reason, axis=self.axis, cause=self.cause)


def refusals(candidate: Candidate, context: Context = _ANYWHERE) -> tuple[Refusal, ...]:
    """Return why a candidate cannot run in a context, as far as the context is known; empty if it can.

    Each sentence is given once, with the first axis that has it.
    """
    asked = [_asked(name, value) for name, value in zip(_NAMES, _chosen(candidate), strict=True)]
    found = [
        Refusal(one.axis, "axes", excluding, rule.because)
        for one in asked
        for rule in one.rules
        if (excluding := rule.excluding(candidate))
    ]
    kind = context.kind or (context.device.kind if context.device else None)
    for one in asked:
        if not one.anything:
            continue
        said: list[tuple[Cause, str]] = [
            ("context", reason) for look in one.checks if (reason := look(candidate, context))
        ]
        said += _lacking(one.value, context, kind)
        found += [Refusal(one.axis, cause, (), reason) for cause, reason in said]
    first: dict[str, Refusal] = {}
    for refused in found:
        first.setdefault(refused.reason, refused)
    return tuple(first.values())


def check(candidate: Candidate, context: Context = _ANYWHERE) -> tuple[str, ...]:
    """Return the sentences of `refusals`."""
    return tuple(refused.reason for refused in refusals(candidate, context))


def refused(candidate: Candidate, context: Context = _ANYWHERE) -> Refusal | None:
    """Return all that `refusals` finds as one, with the axis and the cause of the first; or None."""
    found = refusals(candidate, context)
    return replace(found[0], reason="; ".join(one.reason for one in found)) if found else None


def refusal(candidate: Candidate, context: Context = _ANYWHERE) -> str | None:
    """Return all that `check` finds as one text, or None."""
    return "; ".join(check(candidate, context)) or None


def _lacking(value: Value, context: Context, kind: DeviceKind | None) -> list[tuple[Cause, str]]:
    """Return what device and machine lack for a value."""
    reasons: list[tuple[Cause, str]] = []
    if kind == "cpu" and value.gpu_only:
        reasons.append(("device", value.gpu_only))
    if context.device is not None:
        reasons += [
            (
                "device",
                f"{context.device.name} does not compute in {dtype}; choose precision {INSTEAD[dtype]}",
            )
            for dtype in value.dtypes
            if not context.device.supports(dtype)
        ]
    if (machine := context.machine) is not None:
        reasons += [
            ("package", f"{name} is not installed: {how_to_install(name)}")
            for name in value.packages
            if name not in machine.packages
        ]
        if value.needs_compiler and kind is not None and (reason := machine.lacks_compiler.get(kind)):
            reasons.append(("compiler", reason))
    return reasons


def this_machine() -> MachineFacts:
    """Return the facts of the machine that this process runs on, with every package that a technique names."""
    values = [value for axis in DECLARED for value in axis.values.values()]
    return look_around(dict.fromkeys(name for value in values for name in value.packages))


def packages(candidate: Candidate) -> dict[str, str | None]:
    """Return the packages, beyond autotune's own, that a candidate needs, each with its version on this machine."""
    needed = dict.fromkeys(
        name for axis in DECLARED for name in axis.declared(getattr(candidate, axis.name)).packages
    )
    return {name: installed(name) for name in needed}


def unsupported(axis: str, value: object, context: Context) -> str | None:
    """Return why a value of an axis cannot run in a context in any candidate, or None.

    The context's ranks and nodes are chosen here: as many as the value asks for.
    """
    candidate = simplest(axis, value)
    nodes = 2 if SHARDINGS[candidate.sharding].within_node else 1
    ranks = (1 if candidate.sharding == "none" else 2) * candidate.tensor_parallel * nodes
    return refusal(candidate, replace(context, world_size=ranks, nodes=nodes))


def simplest(axis: str, value: object) -> Candidate:
    """Return a legal candidate with a value of an axis that differs from the default in as few others as possible."""
    others = [(name, choice) for name in AXES if name != axis for choice in choices(name)]
    for count in range(3):
        for changes in combinations(others, count):
            candidate = Candidate.model_validate({**dict(changes), axis: value})
            if not any(rule.broken_by(candidate) for rule in RULES):
                return candidate
    raise AssertionError(f"no legal candidate has {axis} {value}")


def axis_of(name: str) -> Axis:
    """Return the declaration of an axis."""
    return next(axis for axis in DECLARED if axis.name == name)
