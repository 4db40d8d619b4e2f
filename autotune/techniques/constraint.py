"""A rule between the fields of a candidate: which values do not go together, and why."""

from __future__ import annotations

from typing import Any

from pydantic import field_validator

from autotune.candidate import AXES, OPEN, Candidate, is_choice, listed_values
from autotune.errors import SHOWN, nearest
from autotune.printable import quoted
from autotune.validation import Frozen


class Constraint(Frozen):
    """A rule between axes: where `when` holds, `require` must hold too. A list of values means any of them."""

    when: dict[str, Any]
    require: dict[str, Any]
    because: str
    """The reason, shown to whoever asks for an illegal combination."""

    @field_validator("when", "require")
    @classmethod
    def _names_axes(cls, value: dict[str, Any]) -> dict[str, Any]:
        if problems := axis_problems({axis: _listed(choice) for axis, choice in value.items()}):
            raise ValueError("; ".join(problems))
        return value

    def violated_by(self, candidate: Candidate) -> bool:
        """Tell whether the candidate breaks this rule."""
        return _holds(self.when, candidate) and not _holds(self.require, candidate)


ANY = "any"
"""What a search space may list for an open axis in the place of its values: all of them."""


def axis_problems(axes: dict[str, Any], *, or_any: bool = False) -> list[str]:
    """Return what is wrong with values listed for axes: unknown names and values, empty lists.

    With `or_any` an open axis may have ANY among them.
    """
    problems = []
    for axis, values in axes.items():
        if axis not in AXES:
            problems.append(f"{axis}: unknown axis; {nearest(axis, AXES)}")
            continue
        allowed = {ANY} if or_any and axis in OPEN else set()
        wrong = [value for value in values if not is_choice(axis, value) and value not in (*allowed,)]
        valid = ", ".join([listed_values(axis), *allowed])
        problems += [f"{axis}: {quoted(value)} is not one of {valid}" for value in wrong[:SHOWN]]
        if not values:
            problems.append(f"{axis}: at least one value is needed")
    return problems


def _listed(choice: Any) -> Any:
    return choice if isinstance(choice, list | tuple) else [choice]


def _holds(conditions: dict[str, Any], candidate: Candidate) -> bool:
    return all(getattr(candidate, axis) in _listed(choice) for axis, choice in conditions.items())
