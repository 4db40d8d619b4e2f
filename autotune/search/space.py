"""The search space: the axes with the values allowed, the constraints between them, and the decision graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from pydantic import field_validator, model_validator

from autotune.candidate import OPEN, Candidate, choices
from autotune.search.graph import DONE, Graph
from autotune.techniques.constraint import ANY, Constraint, axis_problems
from autotune.user_files import parse_yaml, require_kind
from autotune.validation import Frozen


class Space(Frozen):
    """What may be tried, and in which order. Loaded from YAML under `search_spaces/`, or the user's own."""

    name: str
    description: str
    axes: dict[str, tuple[Any, ...]]
    """Values allowed for each axis; an axis left out keeps the candidate's default. `any` allows all of an open one."""
    constraints: tuple[Constraint, ...] = ()
    graph: Graph

    @field_validator("axes")
    @classmethod
    def _values_exist(cls, value: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        if problems := axis_problems(value, or_any=True):
            raise ValueError("; ".join(problems))
        return value

    @model_validator(mode="after")
    def _graph_stays_inside(self) -> Space:
        problems = [
            f"graph.nodes.{name}.set.{axis}: {value!r} is not among this space's axes.{axis}"
            for name, node in self.graph.nodes.items()
            for axis, value in (node.set or {}).items()
            if not self.allows(axis, value)
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def widened(self, values: Iterable[tuple[str, Any]], base: Candidate) -> Self:
        """Return this space with more values of axes; the graph stays as it is.

        Of an axis that the space leaves out, the value in `base` comes first.
        """
        axes = dict(self.axes)
        for axis, value in values:
            listed = axes.get(axis, (getattr(base, axis),))
            axes[axis] = listed if value in listed else (*listed, value)
        return self.model_copy(update={"axes": axes})

    def plain(self, base: Candidate) -> Candidate:
        """Return the rung that has the first value of every axis; of axes that the space leaves out, that of `base`."""
        return base.model_copy(update={axis: values[0] for axis, values in self.axes.items()})

    def allows(self, axis: str, value: Any) -> bool:
        """Tell whether an axis may have a value."""
        allowed = self.axes.get(axis, (Candidate.model_fields[axis].default,))
        return value in allowed or ANY in allowed

    def values(self, axis: str, blocks: int | None = None) -> tuple[Any, ...]:
        """Return the values that an axis of the space may have, each once.

        `any` stands for the named ones, and for every number that a model of so many blocks has a use for (fewer than
        it has): for none where `blocks` is None.
        """
        assert set(OPEN) == {"checkpointed_blocks"}
        numbers = range(1, blocks or 1)
        return tuple(
            dict.fromkeys(
                one
                for value in self.axes[axis]
                for one in ((*choices(axis), *numbers) if value == ANY and axis in OPEN else (value,))
            )
        )

    def refusal(self, candidate: Candidate) -> str | None:
        """Return why a candidate is illegal in this space, or None."""
        broken = [rule.because for rule in self.constraints if rule.violated_by(candidate)]
        return "; ".join(broken) or None

    def rungs(self, base: Candidate) -> tuple[Candidate, ...]:
        """Return every legal rung that a walk from `base` can come to, in the order of the graph.

        Edges that a device without a precision takes (`unsupported`, `non_finite`) are left out: `base` says
        which precision that is, and a node that sets another is passed through.
        """
        found: dict[Candidate, None] = {}
        pending = [(self.graph.start, base.rung())]
        seen = set()
        while pending:
            name, candidate = pending.pop(0)
            if name == DONE or (name, candidate) in seen:
                continue
            seen.add((name, candidate))
            node = self.graph.nodes[name]
            changes = {axis: value for axis, value in (node.set or {}).items() if axis != "precision"}
            candidate = candidate.model_copy(update=changes)
            if self.refusal(candidate) is None:
                found.setdefault(candidate)
            pending += [
                (target, candidate)
                for edge, target in node.next.items()
                if edge not in {"unsupported", "non_finite", "timeout"}
            ]
        return tuple(found)

    @classmethod
    def parse(cls, text: str, source: str) -> Space:
        """Read a space from YAML text. Raises InputError with every mistake found, each naming `source`."""
        data = parse_yaml(text, source)
        require_kind(data, "a search space", source)
        return cls.load(data, source)
