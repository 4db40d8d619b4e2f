"""Parameters of verbs: the options that are declared elsewhere, as typer reads them, and those that verbs share.

An option is declared once, as a field of `autotune.options` or as an axis of `autotune.techniques`; its flag, help and
default are read from there. Every value is taken as text, so that all mistakes are found, and told, together by the
record that they end in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from autotune.bounds import HelpName
from autotune.cli import completion
from autotune.errors import InputError, nearest
from autotune.options import Options
from autotune.printable import printable, quoted, shortened
from autotune.validation import flag

if TYPE_CHECKING:
    from autotune.techniques.axis import Axis

OUTPUT = "Output"
"""Heading of the options that say what a verb writes, and where."""

RunsOption = Annotated[
    Path,
    typer.Option("--runs", metavar="FOLDER", rich_help_panel=OUTPUT, help="Folder that holds the runs."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", rich_help_panel=OUTPUT, help="Print one JSON document on stdout.")
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Name or path of a run; last is the newest.", autocompletion=completion.runs
    ),
]

LENIENT = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of a verb whose `Given` tells of unknown options."""


@dataclass(frozen=True)
class Given:
    """What a command line gave of the derived options."""

    options: dict[str, Any]
    """By the names of fields and axes, without those that were not given."""
    unknown: tuple[str, ...] = ()
    """What is wrong with options that there are not."""

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Raise an InputError with what is unknown and with what the body finds, where there is any of it."""
        try:
            yield
        except InputError as error:
            raise InputError([*self.unknown, *error.problems]) from None
        if self.unknown:
            raise InputError(self.unknown)


def takes(*derived: inspect.Parameter) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb derived options before its own; its first parameter gets them as `Given`."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(verb, eval_str=True).parameters.values()
        valid = [parameter.name for parameter in (*derived, *own)]

        def call(context: typer.Context, **values: Any) -> None:
            given = {parameter.name: values.pop(parameter.name) for parameter in derived}
            given = {name: value for name, value in given.items() if value is not None and value != []}
            verb(Given(given, tuple(_unknown(context, valid))), **values)

        first = inspect.Parameter(
            "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
        )
        arguments = [parameter for parameter in own if _is_argument(parameter)]
        options = [parameter for parameter in own if not _is_argument(parameter)]
        parameters = [first, *arguments, *derived, *options]
        call.__name__, call.__doc__ = verb.__name__, verb.__doc__
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return call

    return decorate


def options_of(
    model: type[Options], names: Mapping[str, Sequence[str]] | None = None
) -> list[inspect.Parameter]:
    """Return the parameters for the fields of a model, by the subjects of the classes that declare them.

    `names` are what a field takes, where its type does not say it.
    """
    found = []
    for owner in [*model.__mro__[1:], model]:
        if issubclass(owner, Options):
            own = [name for name in model.model_fields if name in owner.__annotations__]
            found += [
                _of_field(name, model.model_fields[name], owner.subject, (names or {}).get(name, ()))
                for name in own
            ]
    assert len(found) == len(model.model_fields)
    return found


def option_of(axis: Axis, subject: str, default: str = "") -> inspect.Parameter:
    """Return the parameter for an axis of a candidate; `default` says what it is where that is no value."""
    if isinstance(axis.default, bool):
        return _switch(axis.name, axis.default, f"{_sentence(axis.about)}.", subject)
    values = [f"{name} ({value.short})" if value.short else str(name) for name, value in axis.values.items()]
    values += ["a number"] if axis.number is not None else []
    text = f"{_sentence(axis.about)}: {_listed(values)}.  [default: {default or axis.default}]"
    numbers = isinstance(axis.default, int) or axis.number is not None
    names = [str(name) for name in axis.values]
    return _parameter(axis.name, str, "N" if numbers else "NAME", text, subject, names)


def _of_field(name: str, field: FieldInfo, subject: str, names: Sequence[str] = ()) -> inspect.Parameter:
    assert field.description, f"{name} has no description"
    kind, metadata = _unwrapped(field.annotation, field.metadata)
    text = " ".join(field.description.replace("`", "").split())
    if kind is bool:
        return _switch(name, field.default, text, subject)
    written = next((part.name for part in metadata if isinstance(part, HelpName)), "")
    if get_origin(kind) is Literal:
        names = [str(value) for value in get_args(kind)]
        text = f"{text.rstrip('.')}: {_listed([str(value) for value in get_args(kind)])}."
        written = "NAME"
    if get_origin(kind) is tuple:
        listed = f": {_listed(names)}" if names else ""
        text = f"{text.rstrip('.')}{listed}; may be repeated."
        return _parameter(name, list[str], written or "TEXT", text, subject, names)
    if field.is_required():
        text += "  [required]"
    elif field.default is not None:
        text += f"  [default: {_shown(field.default, written)}]"
    return _parameter(name, str, written or ("N" if kind is int else "TEXT"), text, subject, names)


def _switch(name: str, default: bool, text: str, subject: str) -> inspect.Parameter:
    flags = f"{flag(name)}/{flag(f'no_{name}')}" if default else flag(name)
    option = typer.Option(flags, help=text + "  [default: on]" * default, rich_help_panel=subject)
    return _keyword(name, Annotated[bool | None, option])


def _parameter(
    name: str, kind: Any, written: str, text: str, subject: str, values: Sequence[str] = ()
) -> inspect.Parameter:
    """Return a parameter that is read as text; `values` are what a shell completes it with."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    option = typer.Option(
        flag(name), metavar=written, help=text, rich_help_panel=subject, show_default=False,
        autocompletion=complete if values else None,
    )  # fmt: skip
    return _keyword(name, Annotated[kind | None, option])


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation
    )


def _unwrapped(annotation: Any, metadata: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """Return the type of a field without `None`, and what it is annotated with."""
    if type(None) in get_args(annotation):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0], get_args(annotation)[1:]
    return annotation, metadata


def _shown(default: Any, written: str) -> str:
    return (
        f"{default:g}s"
        if written == "TIME"
        else f"{default:g}"
        if isinstance(default, float)
        else str(default)
    )


def _listed(values: Sequence[str]) -> str:
    return f"{', '.join(values[:-1])} or {values[-1]}"


def _sentence(phrase: str) -> str:
    return phrase[:1].upper() + phrase[1:]


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any(
        isinstance(part, typer.models.ArgumentInfo)
        for part in getattr(parameter.annotation, "__metadata__", ())
    )


def _unknown(context: typer.Context, valid: Sequence[str]) -> Iterator[str]:
    """Say of words that no option took which option may have been meant; what follows such a one is its value."""
    after = False
    for word in context.args:
        name, sign, _ = word.partition("=")
        if word.startswith("-"):
            hint = nearest(name, [flag(known) for known in valid])
            hint = hint if hint.startswith("did you mean") else f"see {context.command_path} --help"
            yield f"No such option: {printable(shortened(name, 40))}; {hint}"
        elif not after:
            yield f"unexpected argument {quoted(word, 40)}"
        after = word.startswith("-") and not sign
