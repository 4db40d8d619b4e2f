"""The files that ship with autotune: search spaces and the table of hardware."""

from __future__ import annotations

import os
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import autotune
from autotune.errors import InputError, nearest
from autotune.printable import quoted
from autotune.user_files import read_text, user_path


def find_text(name: str) -> str:
    """Return the text of a YAML file: the user's own where `name` is a path to one, else autotune's.

    `name` is a path (`mine/space.yaml`), or the name of a shipped file with or without `.yaml`. Raises
    InputError that names the valid ones, or says why the file cannot be read.
    """
    path = user_path(name, "--space")
    stem = name.removesuffix(".yaml")
    shipped = shipped_names()
    if os.path.exists(path) and not (stem in shipped and os.path.isdir(path)):
        return read_text(path)
    if stem in shipped:
        return shipped_text(stem)
    raise InputError(
        f"there is no file {quoted(name)}, and autotune ships none of that name; {nearest(stem, shipped)}"
    )


def shipped_text(stem: str) -> str:
    """Return the text of a file that ships with autotune, whatever the folder at hand holds."""
    return (_shelf() / f"{stem}.yaml").read_text(encoding="utf-8")


def shipped_names() -> tuple[str, ...]:
    """Return the names of all shipped YAML files, without their ending, sorted."""
    names = (entry.name for entry in _shelf().iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def _shelf() -> Traversable:
    """Inside an installed package, or beside it in a source checkout."""
    installed = resources.files(autotune) / "search_spaces"
    return installed if installed.is_dir() else Path(autotune.__file__).parents[1] / "search_spaces"
