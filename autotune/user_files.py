"""The one way in for files that a user or a stranger wrote: read within limits, and parsed into plain data.

Whatever a file holds, what comes of it is text, numbers, booleans, None, lists and mappings by text, in bounded time
and memory, or one InputError that says what is wrong with it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from autotune.errors import InputError
from autotune.printable import quoted
from autotune.units import MIB, format_bytes

LARGEST = MIB
"""Bytes of a file of settings: the longest that autotune writes take 20 KiB."""
DEEPEST = 50
"""Levels of lists and mappings in each other."""
MOST_VALUES = 200_000
"""Values of a document, those that an alias repeats counted each time."""
MOST_DIGITS = 100
"""Digits of a whole number; each key has a limit of its own besides."""

_HALF = re.compile("[\ud800-\udfff]")

OPTIONS = "a file of options for `autotune run`"
"""The kind that may leave out every key: the command line gives the rest."""
KINDS: dict[str, frozenset[str]] = {
    "a best.yaml": frozenset({"candidate", "accumulation", "memory"}),
    "a search space": frozenset({"axes", "graph"}),
    "the spec.yaml of a run": frozenset({"goal", "space", "limits"}),
    OPTIONS: frozenset({"model", "target_global_batch"}),
    "a sweep file": frozenset({"matrix"}),
    "a table of hardware": frozenset({"hardware"}),
    "a cluster file": frozenset({"engine", "partitions"}),
    "a model's config.json": frozenset({"model_type"}),
}
"""Each kind of file by the keys that tell it from the others."""

_SURELY_TOO_DEEP = re.compile(rf"(?:[\[{{]\s*){{{DEEPEST + 1}}}|(?:- +){{{DEEPEST + 1}}}")


def user_path(text: str | os.PathLike[str], flag: str) -> Path:
    """Return the path that a user wrote, `~` and `~name` expanded. Raises InputError, naming the flag."""
    written = os.fspath(text)
    if not written.strip():
        raise InputError(f"{flag}: the name is empty")
    if "\0" in written:
        raise InputError(f"{flag}: {quoted(written)} holds a NUL character, which no path can")
    try:
        return Path(written).expanduser()
    except RuntimeError:
        user = Path(written).parts[0]
        raise InputError(f"{flag}: {quoted(written)}: there is no home folder of {user}") from None


def read_bytes(path: Path, source: str | None = None, most: int = LARGEST) -> bytes:
    """Return what a regular file holds, of `most` bytes at most. Raises InputError, naming `source`.

    Nothing else is opened for long: a pipe would wait for its writer, and /dev/zero never ends.
    """
    source = source or str(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        _refuse(source, error)
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            raise InputError(f"{source} cannot be read: it is {_kind(mode)}, not a regular file")
        with open(handle, "rb", closefd=False) as file:
            content = file.read(most + 1)
    except OSError as error:
        _refuse(source, error)
    finally:
        os.close(handle)
    if len(content) > most:
        raise InputError(
            f"{source} cannot be read: it is larger than {format_bytes(most)}, and so no such file"
        )
    return content


def read_text(path: Path, source: str | None = None, most: int = LARGEST) -> str:
    """Return the text (UTF-8, with or without a byte order mark) of a regular file. Raises InputError."""
    return decoded(read_bytes(path, source, most), source or str(path))


def decoded(content: bytes, source: str) -> str:
    """Return a file's bytes as text (UTF-8, with or without a byte order mark). Raises InputError."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {error.start + 1:,} is {content[error.start]:#04x}"
        raise InputError(f"{source} cannot be read: it is not a text file in UTF-8 ({found})") from None
    if "\0" in text:
        raise InputError(f"{source} cannot be read: it holds a NUL character, so it is not text")
    return text


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """Read a YAML mapping. Raises InputError with line and column when it is malformed."""
    plain = None
    if _SURELY_TOO_DEEP.search(text):  # on which the YAML reader would spend seconds
        _too_deep(source)
    if text.lstrip().startswith("{"):  # YAML holds JSON, which is read a hundred times faster
        with suppress(ValueError, RecursionError):
            plain = json.loads(text, object_pairs_hook=_pairs)
    if plain is not None:
        return _mapping(plain, source)
    try:
        data = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        said = str(getattr(error, "problem", None) or error).splitlines()[0]
        raise InputError(f"{where}: not valid YAML: {said}") from None
    except RecursionError:
        _too_deep(source)
    except Exception as error:  # noqa: BLE001  a scalar that its tag or form belies; each kind raises what it likes
        raise InputError(f"{source}: not valid YAML: {str(error).splitlines()[0] or error!r}") from None
    return _mapping(data, source)


def parse_json_value(text: str, source: str) -> Any:
    """Read a JSON document of any kind. Raises InputError."""
    try:
        data = json.loads(text, object_pairs_hook=_pairs)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{source} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        _too_deep(source)
    except ValueError as error:  # a key twice, or a number of more digits than Python reads
        raise InputError(f"{source} is not valid JSON: {error}") from None
    check_plain(data, source)
    return data


def require_kind(data: dict[str, Any], kind: str, source: str) -> None:
    """Raise one InputError where data is another kind of file, of which every key would be a mistake."""
    keys = data.keys()
    if KINDS[kind] <= keys:
        return
    other = next((name for name, marks in KINDS.items() if name != kind and marks <= keys), None)
    if other is not None:
        raise InputError(f"{source} is not {kind}: it is {other}")
    if kind != OPTIONS and not KINDS[kind] & keys:
        raise InputError(f"{source} is not {kind}: it has no key {', '.join(sorted(KINDS[kind]))}")


def check_plain(data: object, source: str) -> None:
    """Raise InputError unless a document is plain: text as keys, and no more, deeper or longer values than a limit."""
    left = MOST_VALUES
    pending: list[tuple[object, int]] = [(data, 0)]
    while pending:
        value, depth = pending.pop()
        left -= 1
        if left < 0:
            raise InputError(f"{source} holds more than {MOST_VALUES:,} values, and so is no such file")
        if depth > DEEPEST:
            _too_deep(source)
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise InputError(f"{source}: the key {quoted(key)} is not text; put it in quotes")
                _require_characters(key, source)
            pending += [(part, depth + 1) for part in value.values()]
        elif isinstance(value, list):
            pending += [(part, depth + 1) for part in value]
        elif isinstance(value, int):
            if value.bit_length() > 3.33 * MOST_DIGITS:
                raise InputError(f"{source} holds {quoted(value)}; {MOST_DIGITS} digits are the most")
        elif isinstance(value, str):
            _require_characters(value, source)
        elif value is not None and not isinstance(value, float):
            raise InputError(
                f"{source}: {quoted(value)} is a {type(value).__name__}, where text, numbers, lists and keys are read; "
                "put it in quotes"
            )


def _require_characters(text: str, source: str) -> None:
    r"""Raise InputError for text that an escape (`\ud800`) makes of half a character: no file can hold it."""
    if _HALF.search(text):
        raise InputError(
            f"{source}: {quoted(text)} holds half a character (a lone surrogate), and so is no text"
        )


def _pairs(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {quoted(key)} stands there twice")
        found[key] = value
    return found


def _mapping(data: object, source: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        found = "nothing" if data is None else f"a {type(data).__name__}"
        raise InputError(f"{source}: expected keys and values, found {found}")
    check_plain(data, source)
    return data


def _too_deep(source: str) -> NoReturn:
    raise InputError(
        f"{source} nests lists or keys in more than {DEEPEST} levels, and so is no such file"
    ) from None


def _refuse(source: str, error: OSError | ValueError) -> NoReturn:
    match error:
        case OSError(errno=errno.ELOOP):
            why = "its links lead in a circle"
        case OSError(errno=errno.ENXIO):
            why = "it is a socket, not a regular file"
        case OSError(strerror=str(told)):
            why = told
        case _:
            why = str(error)
    raise InputError(f"{source} cannot be read: {why}") from None


def _kind(mode: int) -> str:
    for test, name in (
        (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
    ):  # fmt: skip
        if test(mode):
            return name
    return "no file"
