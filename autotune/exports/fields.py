"""How a target treats each field of a candidate: it says where it is expressed, or why it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.candidate import Candidate
from autotune.errors import InputError
from autotune.run.best import Best


class CannotExport(InputError):
    """A target cannot express what was chosen. Names every field, and why."""

    def __init__(self, target: str, reasons: Mapping[str, str]) -> None:
        self.target = target
        self.reasons = dict(reasons)
        """Why, by the name of the field."""
        super().__init__(f"cannot export to {target}: {field}: {why}" for field, why in reasons.items())


def _always(_best: Best) -> str | None:
    return None


@dataclass(frozen=True)
class Expressed:
    """Where a field's value ends up, and when it cannot."""

    where: str
    """File and key, for people."""
    refuse: Callable[[Best], str | None] = _always
    """Returns why the value at hand cannot be expressed, or None."""


def refuse(
    best: Best, target: str, fields: Mapping[str, Expressed], others: Mapping[str, str | None]
) -> None:
    """Raise CannotExport where a value cannot be expressed.

    `fields` has to name every field of a candidate; `others` holds reasons about the rest of the file.
    """
    assert set(fields) == set(Candidate.model_fields), "a target decides about every field of a candidate"
    reasons = {name: field.refuse(best) for name, field in fields.items()} | dict(others)
    if found := {name: why for name, why in reasons.items() if why}:
        raise CannotExport(target, found)
