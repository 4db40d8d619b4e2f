"""A file that a picture or a page is to be written to: what can be refused before the work for it begins."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from autotune.environment import how_to_install, installed
from autotune.errors import InputError

DRAWN_BY = {".png": "matplotlib", ".html": "plotly"}
"""The library that draws to files of each ending. autotune does without both unless something is to be drawn."""


def check_picture(flag: str, file: Path, drawn_by: Mapping[str, str]) -> None:
    """Raise InputError, naming the `flag`, where no picture can be written to a file.

    `drawn_by` is what of DRAWN_BY draws it.
    """
    if file.suffix in drawn_by and installed(library := drawn_by[file.suffix]) is None:
        raise InputError(
            f"{flag} {file}: {library} is not installed: {how_to_install(library)}",
            about=flag.removeprefix("--"),
        )
    check_file(flag, file, drawn_by)


def check_file(flag: str, file: Path, endings: Iterable[str]) -> None:
    """Raise InputError, naming the `flag`, where a file's name does not end so, or it cannot be written there."""
    about = flag.removeprefix("--")
    if file.suffix not in endings:
        raise InputError(f"{flag} {file}: the name must end in {' or '.join(endings)}", about=about)
    if not os.path.isdir(file.parent):
        raise InputError(f"{flag} {file}: there is no folder {file.parent}", about=about)
    if os.path.isdir(file):
        raise InputError(f"{flag} {file} is a folder", about=about)
