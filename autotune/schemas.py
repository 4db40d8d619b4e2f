"""All files that have a JSON Schema, by what `autotune schema` calls them; and how a file is joined with its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.candidate import AXES, OPEN, choices
from autotune.errors import InputError, nearest, unwritable
from autotune.json_schema import reference, schema_name, schema_of, schema_text
from autotune.options import RunOptions
from autotune.printable import quoted
from autotune.probe.folder import write_atomically
from autotune.run.best import BEST_TITLE, Best
from autotune.run.folder import RUN_TITLE
from autotune.script.axes import AxesFile
from autotune.search.space import Space
from autotune.specs import RunSpec
from autotune.sweep.file import SweepFile
from autotune.techniques.check import axis_of
from autotune.techniques.constraint import ANY
from autotune.training_command import NUMBERS
from autotune.user_files import read_text, user_path

_MARK = "# yaml-language-server:"


def schema(name: str) -> dict[str, Any]:
    """Return a schema by its name. Raises InputError for one that there is not."""
    if name not in SCHEMAS:
        raise InputError(f"there is no schema {quoted(name)}; {nearest(name, SCHEMAS)}", about="name")
    return SCHEMAS[name][1]()


def attach(name: str, file: str | Path) -> Path:
    """Write a schema beside a file and have the file's first line refer to it; return the schema's path.

    The file's other lines stay as they are. Raises InputError where it cannot be read or written.
    """
    path, found = user_path(file, "FILE"), schema(name)
    lines = read_text(path).splitlines(keepends=True)
    while lines and lines[0].startswith(_MARK):
        del lines[0]
    beside = path.with_name(schema_name(name))
    try:
        write_atomically(beside, schema_text(found))
        write_atomically(path, reference(name) + "".join(lines))
    except OSError as error:
        raise unwritable(f"{error.filename or path} cannot be written", error) from None
    return beside


def _spec() -> dict[str, Any]:
    """Return the schema of what `--spec` reads, whose keys may be written like flags too."""
    found = schema_of(RunOptions, "options of autotune run (--spec)")
    properties = found["properties"]
    found["properties"] = properties | {key.replace("_", "-"): value for key, value in properties.items()}
    found.pop("required", None)  # what a file leaves out, the command line may give
    return found


def _space() -> dict[str, Any]:
    """Return the schema of a search space, with the values that each axis may have."""
    found = schema_of(Space, "a search space of autotune (--space)")
    axes = {
        name: {"type": "array", "items": _values(name), "description": axis_of(name).about} for name in AXES
    }
    found["properties"]["axes"] |= {"properties": axes, "additionalProperties": False}
    return found


def _values(axis: str) -> dict[str, Any]:
    named = {"enum": [*choices(axis), *([ANY] if axis in OPEN else [])]}
    return {"anyOf": [named, {"type": "integer"}]} if axis_of(axis).number is not None else named


def _axes() -> dict[str, Any]:
    """Return the schema of a mapping file, whose keys are axes and numbers."""
    found = schema_of(AxesFile, "a mapping file of autotune (--axes)")
    names = [*NUMBERS, *AXES]
    found["properties"]["axes"]["propertyNames"] = {"enum": names}
    return found


SCHEMAS: Mapping[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "spec": ("what `autotune run --spec` reads", _spec),
    "space": ("a search space, for --space", _space),
    "axes": ("a mapping of a command's flags, for --axes", _axes),
    "sweep": ("a sweep file", lambda: schema_of(SweepFile, "a sweep file of autotune")),
    "best": ("best.yaml", lambda: schema_of(Best, BEST_TITLE, written=True)),
    "run": ("the spec.yaml of a run", lambda: schema_of(RunSpec, RUN_TITLE, written=True)),
}
"""Each with what it is of."""
