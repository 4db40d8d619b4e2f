"""Configuration files that a command reads: a copy with other values, whatever of JSON, YAML or TOML it is. Pure."""

from __future__ import annotations

import io
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from autotune.errors import InputError, nearest
from autotune.printable import quoted
from autotune.user_files import check_plain, parse_json_value, parse_yaml

KINDS = {".json": "JSON", ".yaml": "YAML", ".yml": "YAML", ".toml": "TOML"}
"""By the end of a file's name, what is in it."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def split_key(written: str) -> tuple[str, tuple[str, ...]]:
    """Return file and path of a key written `FILE:key.of.sections`. Raises InputError."""
    file, sign, path = written.rpartition(":")
    if not sign or not file or not all(path.split(".")):
        raise InputError(f"{quoted(written)} names no key of a file; write it like config.json:optimizer.lr")
    if PurePath(file).suffix.lower() not in KINDS:
        raise InputError(f"{quoted(written)}: a file ends in one of {', '.join(KINDS)}")
    return file, tuple(path.split("."))


def edited(text: str, source: str, changes: Mapping[tuple[str, ...], Any]) -> str:
    """Return a file's text with other values at some paths; sections that are missing are made.

    A part of a path that is a number is a place in a list. All else stays, but for comments in JSON and TOML, which
    their readers drop. Raises InputError with every mistake.
    """
    data = parsed(text, source)
    problems = []
    for path, value in changes.items():
        try:
            _set(data, path, value)
        except InputError as error:
            problems += [f"{source}: {problem}" for problem in error.problems]
    if problems:
        raise InputError(problems)
    match _kind(source):
        case "JSON":
            return json.dumps(data, indent=2) + "\n"
        case "TOML":
            return _toml(data)
        case _:
            for path, value in changes.items():
                if isinstance(value, str):
                    _set(data, path, DoubleQuotedScalarString(value))
            out = io.StringIO()
            _yaml().dump(data, out)
            return out.getvalue()


def parsed(text: str, source: str) -> Any:
    """Return what a file holds; of YAML with its comments. Raises InputError."""
    match _kind(source):
        case "JSON":
            return parse_json_value(text, source)
        case "TOML":
            try:
                data = tomllib.loads(text)
            except (tomllib.TOMLDecodeError, RecursionError) as error:
                raise InputError(f"{source} is not valid TOML: {error}") from None
            return data
        case _:
            parse_yaml(text, source)  # within its limits
            return _yaml().load(text)


def _yaml() -> YAML:
    """Return what reads and writes YAML 1.2 and keeps quotes: most programs read 1.1, where a bare no is false."""
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    return yaml


def _kind(source: str) -> str:
    return KINDS[PurePath(source).suffix.lower()]


def _set(data: Any, path: tuple[str, ...], value: Any) -> None:
    check_plain({"value": value}, ".".join(path))
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(data, list):
            if not part.isdecimal() or int(part) >= len(data):
                raise InputError(f"{'.'.join(path)}: {quoted(part)} is no place of a list of {len(data)}")
            if last:
                data[int(part)] = value
            else:
                data = data[int(part)]
        elif isinstance(data, dict):
            if last:
                data[part] = value
            else:
                if data.get(part) is None:
                    data[part] = {}
                data = data[part]
        else:
            before = ".".join(path[:depth])
            raise InputError(f"{'.'.join(path)}: {before} is {quoted(data)}, which has no {quoted(part)}")


def near_keys(data: Any, path: tuple[str, ...]) -> str:
    """Return which key may have been meant where a path is not in a file; empty where it is, or nothing is near."""
    for part in path:
        if not isinstance(data, dict):
            return ""
        if part not in data:
            hint = nearest(part, [str(key) for key in data])
            return hint if hint.startswith("did you mean") else ""
        data = data[part]
    return ""


def _toml(data: Mapping[str, Any], section: tuple[str, ...] = ()) -> str:
    """Return a table as TOML: its values, then its tables."""
    plain = {key: value for key, value in data.items() if not isinstance(value, dict)}
    lines = [f"{_key(key)} = {_value(value)}\n" for key, value in plain.items()]
    head = f"[{'.'.join(map(_key, section))}]\n" if section and (lines or len(plain) == len(data)) else ""
    tables = [_toml(value, (*section, key)) for key, value in data.items() if isinstance(value, dict)]
    return "\n".join(part for part in (head + "".join(lines), *tables) if part)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            return f"{{{', '.join(f'{_key(key)} = {_value(part)}' for key, part in value.items())}}}"
        case int() | float():
            return repr(value)
        case _ if hasattr(value, "isoformat"):
            return str(value.isoformat())
        case _:
            raise InputError(f"TOML has no way to write {quoted(value)}")
