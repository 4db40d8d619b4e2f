"""Commands as they are shown for people to paste into a shell."""

from __future__ import annotations

import shlex
from pathlib import Path


def command(*arguments: str | Path) -> str:
    """Return a command of autotune that a shell reads as these arguments, whatever their characters.

    A path that begins with a dash is written as `./-...`, or it would be read as an option.
    """
    return shlex.join(["autotune", *(_argument(argument) for argument in arguments)])


def _argument(argument: str | Path) -> str:
    return f"./{argument}" if isinstance(argument, Path) and str(argument).startswith("-") else str(argument)
