"""The base of every file and message: strict, frozen, with errors that a person can act on."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from typing import Any, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from autotune.errors import SHOWN, InputError, Problem, nearest
from autotune.printable import QUOTED, quoted, shortened

_Record = TypeVar("_Record", bound="Frozen")

TOLD = SHOWN - 1
"""Problems of one document that are told one by one: an error tells one more, how many there are besides."""


class Frozen(BaseModel):
    """An immutable record. Unknown keys are refused, with the nearest valid name."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=False,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        ser_json_inf_nan="strings",  # where a field allows one, null would say that there was no number
        defer_build=True,  # a validator is built when it is first used: few of them are by any one command
    )

    @classmethod
    def load(cls, data: object, source: str, flags: Container[str] = ()) -> Self:
        """Validate `data` (from YAML or JSON) and raise InputError with every problem.

        Each names `source`, but for keys that were given as `flags` of a command: these it calls as they were typed.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise InputError(explain(error, cls, source, flags)) from None

    @classmethod
    def load_with(
        cls, data: dict[str, Any], source: str, check: Callable[[Self], object], flags: Container[str] = ()
    ) -> Self:
        """Validate as `load`; where that finds problems, add those that `check` raises of the rest.

        The rest is `data` without the keys that have a problem, if that alone is a record. Raises InputError.
        """
        try:
            return cls.load(data, source, flags)
        except InputError as error:
            problems = list(error.problems)
            try:
                check(cls.model_validate(_without_problems(data, cls)))
            except ValidationError:
                pass  # a key is required and missing, which has been told
            except InputError as more:
                problems += more.problems
            raise InputError(problems) from None

    def part(self, kind: type[_Record]) -> _Record:
        """Return the fields that this record has of another, as one of that kind."""
        return kind.model_validate({name: getattr(self, name) for name in kind.model_fields})


def flag(name: str) -> str:
    """Return the flag of the command line for an option: `--seq-len` for `seq_len`."""
    return f"--{name.replace('_', '-')}"


def _without_problems(data: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    try:
        model.model_validate(data)
    except ValidationError as error:
        wrong = {detail["loc"][0] for detail in error.errors() if detail["loc"]}
        return {key: value for key, value in data.items() if key not in wrong}
    return data


def explain(
    error: ValidationError, model: type[BaseModel], source: str, flags: Container[str] = ()
) -> list[str]:
    """Turn pydantic's report into one line a problem: where it is, what is wrong, what would be right.

    The first `TOLD` are told one by one, keys that there are not before all others, and how many more there are.
    """
    told = [
        Problem(
            _explain_one(detail, model, source, flags),
            about=".".join(str(part) for part in detail["loc"] if part != "[key]"),
        )
        for detail in sorted(
            error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden"
        )[:TOLD]
    ]
    more = error.error_count() - TOLD
    return [*told, *([f"{source}: {more:,} more problems"] if more > 0 else [])]


def _explain_one(detail: Any, model: type[BaseModel], source: str, flags: Container[str]) -> str:
    location = [str(part) for part in detail["loc"]]
    where = ".".join(shortened(part, QUOTED) for part in location) or "the document"
    where = flag(location[0]) if location and location[0] in flags else f"{source}: {where}"
    match detail["type"]:
        case "extra_forbidden":
            owner = _model_at(model, location[:-1])
            hint = nearest(location[-1], owner.model_fields) if owner else ""
            return f"{where}: unknown key; {hint}".rstrip("; ")
        case "missing":
            return f"{where}: this key is required and missing"
        case "literal_error":
            expected = detail["ctx"]["expected"]
            hint = nearest(str(detail["input"]), re.findall(r"'([^']*)'", expected))
            meant = f"; {hint}" if hint.startswith("did you mean") else ""
            return f"{where}: {quoted(detail['input'])} is not one of {expected}{meant}"
        case "value_error":
            return f"{where}: {detail['ctx']['error']}"
        case _:
            return f"{where}: {detail['msg']} (found {quoted(detail['input'])})"


def _model_at(model: type[BaseModel], location: list[str]) -> type[BaseModel] | None:
    """Follow a path of keys through nested models, looking inside containers and unions."""
    current: type[BaseModel] | None = model
    pending: list[type[BaseModel]] = []
    for part in location:
        if current is not None and part in current.model_fields:
            pending = _models_in(current.model_fields[part].annotation)
            current = pending[0] if len(pending) == 1 else None
        elif pending and current is None:  # a union: pydantic names the chosen member in the path
            current = next((m for m in pending if m.__name__ == part), None)
    return current


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]
