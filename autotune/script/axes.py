"""The mapping file (`--axes`): which flag, variable or key of a configuration file carries which axis and value."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from autotune.candidate import AXES, choices
from autotune.errors import InputError, nearest
from autotune.printable import quoted
from autotune.script.config_files import split_key
from autotune.script.template import text_of
from autotune.training_command import NUMBERS, Carrier, WrittenValue
from autotune.user_files import parse_yaml, read_text, user_path
from autotune.validation import Frozen

SHIPPED = Path(__file__).with_name("mappings")
"""The files that autotune has, by the names of the programs that they are for."""
_CARRIERS = ("flag", "env", "key")


class Mapping(Frozen):
    """What a mapping file says."""

    axes: dict[str, dict[str, WrittenValue]] = Field(default_factory=dict)
    numbers: dict[str, Carrier] = Field(default_factory=dict)


class AxesFile(Frozen):
    """A mapping file as it is written."""

    description: str = ""
    """Whose flags or keys they are, and what is to be known of them."""
    axes: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]


def shipped_axes() -> tuple[str, ...]:
    """Return the names of the mapping files that ship with autotune."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def read_axes(name: str, base: Path) -> Mapping:
    """Return a mapping by the name of a shipped one or the path of a file. Raises InputError with every mistake."""
    if name in shipped_axes():
        return parse_axes((SHIPPED / f"{name}.yaml").read_text(encoding="utf-8"), name)
    path = base / user_path(name, "--axes")
    if not path.exists() and not path.suffix:
        raise InputError(
            f"--axes: {quoted(name)} is neither a file nor a shipped mapping; {nearest(name, shipped_axes())}",
            about="axes",
        )
    return parse_axes(read_text(path), str(path))


def parse_axes(text: str, source: str) -> Mapping:
    """Read a mapping from YAML text. Raises InputError with every mistake."""
    file = AxesFile.load(parse_yaml(text, source), source)
    axes: dict[str, dict[str, WrittenValue]] = {}
    numbers: dict[str, Carrier] = {}
    problems: list[str] = []
    for name, said in file.axes.items():
        where = f"{source}: axes.{name}"
        try:
            if name in NUMBERS:
                numbers[name] = _number(said, where)
            elif name in AXES:
                axes[name] = _axis(name, said, where)
            else:
                problems.append(f"{where}: there is no such axis; {nearest(name, (*NUMBERS, *AXES))}")
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return Mapping(axes=axes, numbers=numbers)


def _number(said: dict[str, Any], where: str) -> Carrier:
    carrier = Carrier.load(said, where)
    if sum(getattr(carrier, kind) is not None for kind in _CARRIERS) != 1:
        raise InputError(f"{where}: say exactly one of flag, env and key")
    if carrier.key is not None:
        split_key(carrier.key)
    return carrier


def _axis(name: str, said: dict[str, Any], where: str) -> dict[str, WrittenValue]:
    unknown = [key for key in said if key not in (*_CARRIERS, "values")]
    problems = [f"{where}.{key}: unknown key; {nearest(key, (*_CARRIERS, 'values'))}" for key in unknown]
    given = [kind for kind in _CARRIERS if kind in said]
    if len(given) > 1:
        problems.append(f"{where}: say one of flag, env and key")
    known = [text_of(value) for value in choices(name)]
    values = said.get("values")
    if isinstance(values, list):
        values = {text_of(value): str(text_of(value)) for value in values}
    if not isinstance(values, dict) or not values:
        raise InputError(
            [*problems, f"{where}.values: list the values of {name} that it takes, or map each to its own"]
        )
    found = {}
    for value, own in values.items():
        if value not in known:
            problems.append(f"{where}.values: {quoted(value)} is no value of {name}; {nearest(value, known)}")
            continue
        try:
            found[value] = _written(own, {kind: said[kind] for kind in given}, f"{where}.values.{value}")
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return found


def _plain(value: Any) -> str:
    """Return a value of YAML as a variable or an argument has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _written(own: Any, carrier: dict[str, str], where: str) -> WrittenValue:
    """Return what a value writes: by its own `args`, `env` and `keys`, or by the axis' carrier."""
    if isinstance(own, dict):
        if not own.keys() <= WrittenValue.model_fields.keys() - {"text"}:
            raise InputError(
                f"{where}: a value that is written apart has args, env and keys, and nothing else"
            )
        own = {**own, "env": {name: _plain(value) for name, value in (own.get("env") or {}).items()}}
        written = WrittenValue.load({**own, "args": [_plain(word) for word in own.get("args") or ()]}, where)
        for key in written.keys:
            split_key(key)
        return written
    if own is None:
        return WrittenValue()
    if not carrier:
        raise InputError(f"{where}: nothing carries it: give the axis a flag, env or key")
    ((kind, name),) = carrier.items()
    if kind == "key":
        split_key(name)
        return WrittenValue(keys={name: own})
    if kind == "env":
        return WrittenValue(env={name: _plain(own)})
    return WrittenValue(args=flagged(name, own))


def flagged(flag: str, value: object) -> tuple[str, ...]:
    """Return the words that give a flag a value, which `--name=` takes in the same word.

    True is the flag alone, and false nothing at all.
    """
    if isinstance(value, bool):
        return (flag,) if value else ()
    return (f"{flag}{value}",) if flag.endswith("=") else (flag, str(value))
