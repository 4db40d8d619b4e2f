"""What a target can express of a candidate, and where; whatever else is off its default is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.candidate import AXES
from autotune.errors import InputError
from autotune.run.best import Best
from autotune.techniques.check import axis_of


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


_ENGINES_OWN = frozenset({"sharding", "offload", "offload_to"})
"""What another engine does by itself: who expresses the engine expresses these."""


def not_expressed(best: Best, field: str) -> str | None:
    """Return the technique's own reason why no other library trains it as it was measured; None for its default."""
    axis = axis_of(field)
    if getattr(best.candidate, field) == axis.default:
        return None
    if best.candidate.engine != "torch" and field in _ENGINES_OWN:
        return None  # as the engine does it, which is told with the engine
    return f"{axis.not_exported or 'this target has no name for it'}. Use --to native"


def refuse(
    best: Best, target: str, fields: Mapping[str, Expressed], others: Mapping[str, str | None]
) -> None:
    """Raise CannotExport where a value cannot be expressed.

    `fields` names what the target can express; every other field must be at its default. `others` holds reasons about
    the rest of the file.
    """
    reasons = {
        name: fields[name].refuse(best) if name in fields else not_expressed(best, name) for name in AXES
    }
    if found := {name: why for name, why in (reasons | dict(others)).items() if why}:
        raise CannotExport(target, found)
