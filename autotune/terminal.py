"""How the command line speaks: on a terminal or into a file, as a document, or with an error and its exit code.

With `cli` the only place that prints, and the only one that exits.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.errors import AutotuneError

LOG_WIDTH = 160
"""Columns where the output goes to a file: no path or command is broken over two lines there."""


def fail(error: Exception) -> NoReturn:
    """Print an error for people and exit with its code; an unexpected one keeps its traceback."""
    from autotune.errors import AutotuneError

    # A wrong option. Told by what it can do: some versions of typer carry their own copy of click.
    if not isinstance(error, AutotuneError) and hasattr(error, "show") and hasattr(error, "exit_code"):
        error.show()
        sys.exit(error.exit_code)
    if not isinstance(error, AutotuneError):
        raise error
    print_error(error)
    sys.exit(error.exit_code)


def print_error(error: AutotuneError) -> None:
    """Print an error for people, a line for each problem; the model's own with its traceback."""
    from autotune.errors import ModelError

    console = console_for()
    if isinstance(error, ModelError) and error.traceback:
        console.print(error.traceback.rstrip(), style="dim", markup=False, highlight=False)
    for line in str(error).splitlines():
        console.print(f"error: {line}", style="red", markup=False, highlight=False, soft_wrap=True)


def say(console: Console, text: str, style: str = "") -> None:
    """Print a line as it is: nothing in it is markup, and a path or command in it is not broken over two lines."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def console_for(stderr: bool = True) -> Console:
    """Return the console of standard error, or of standard output."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = LOG_WIDTH
    return console


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    import json

    print(json.dumps(value, indent=2))
