"""How the command line speaks: on a terminal or into a file, as a document, or with an error and its exit code.

With `cli` the only place that prints, and the only one that exits.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from autotune.exit_codes import ExitCode
from autotune.printable import printable, shortened

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from autotune.errors import AutotuneError

LOG_WIDTH = 160
"""Columns where the output goes to a file and COLUMNS does not say otherwise."""
LEAST_WIDTH = 40
"""Columns that a table needs in any case."""
LINES = 30
"""Lines of an error that are printed, and lines of the traceback of a user's model, the last ones."""


def fail(error: Exception) -> NoReturn:
    """Print an error for people and exit with its code; an unexpected one keeps its traceback."""
    from autotune.errors import AutotuneError

    # A wrong option. Told by what it can do: some versions of typer carry their own copy of click.
    if (
        not isinstance(error, AutotuneError)
        and hasattr(error, "format_message")
        and hasattr(error, "exit_code")
    ):
        context = getattr(error, "ctx", None)
        see = f"\nsee {context.command_path} --help" if context else ""
        _print_lines(error.format_message() + see, "red", "error: ")
        sys.exit(ExitCode.INPUT)
    if not isinstance(error, AutotuneError):
        raise error
    print_error(error)
    sys.exit(error.exit_code)


def print_error(error: AutotuneError) -> None:
    """Print an error for people, a line for each problem; the model's own with the end of its traceback."""
    from autotune.errors import ModelError

    if isinstance(error, ModelError):
        _print_lines(error.traceback.rstrip(), "dim", last=True)
    _print_lines(str(error), "red", "error: ")


def _print_lines(text: str, style: str, before: str = "", last: bool = False) -> None:
    """Print as many lines on standard error as a person reads; nobody can be told where it is full or closed."""
    lines = text.split("\n") if text else []
    with suppress(OSError):
        console = console_for()
        for line in lines[-LINES:] if last else lines[:LINES]:
            say(console, f"{before}{shortened(line)}", style)


def keep_stderr() -> None:
    """Go on without standard error where it is gone: a closed terminal must neither end a run nor hide how it ends."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    elif not isinstance(sys.stderr, _Kept):
        sys.stderr = _Kept(sys.stderr)


_IN_ASCII = dict(zip("━─│≤≥±×–—", ("#", "-", "|", "<=", ">=", "+-", "x", "-", "-"), strict=True))  # noqa: RUF001


def write_what_can_be_written() -> None:
    """Have standard output say in ASCII what its encoding lacks: a bar of a table must not end a report."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        codecs.register_error("autotune", _in_ascii)
        sys.stdout.reconfigure(errors="autotune")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(
        _IN_ASCII.get(one) or one.encode("ascii", "backslashreplace").decode() for one in lacking
    ), error.end


class _Kept:
    """Standard error, that is nobody's any more once writing to it fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        with open(os.devnull, "wb") as nowhere:
            # What is buffered, and what other code writes, goes there too.
            os.dup2(nowhere.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def say(console: Console, text: str, style: str = "") -> None:
    """Print a line as it is: nothing in it is markup, and a path or command in it is not broken over two lines."""
    console.print(text, style=style, soft_wrap=True)


def finish(code: int) -> NoReturn:
    """Exit once standard output has taken everything; with a line and another code where it could not."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        fail_on_this_machine(error)
    sys.exit(code)


def fail_on_this_machine(error: OSError) -> NoReturn:
    """Exit because the system refused something, most likely output; quietly where its reader has gone away."""
    with suppress(OSError):
        if error.errno != errno.EPIPE:
            what = f"{error.filename}: " if error.filename else "the output cannot be written: "
            sys.stderr.write(f"error: {printable(what + (error.strerror or str(error)))}\n")
        # What is still in the buffer would be tried once more when Python ends, and end in a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(ExitCode.MACHINE)


def console_for(stderr: bool = True) -> Console:
    """Return the console of standard error, or of standard output."""
    from autotune.console import PlainConsole, Unpadded

    console = PlainConsole(stderr=stderr)
    stream = sys.stderr if stderr else sys.stdout
    if console.is_terminal or stream is None:
        return console
    # Tables and panels fill their lines with blanks, which only a screen needs.
    return PlainConsole(file=Unpadded(stream), width=_asked_width() or LOG_WIDTH)


def _asked_width() -> int | None:
    """Return the columns that the environment asks for; None where it does not say."""
    asked = os.environ.get("COLUMNS", "")
    return max(LEAST_WIDTH, int(asked)) if asked.isdecimal() and len(asked) < 6 else None


def print_item(console: Console, mark: tuple[str, str], text: Text) -> None:
    """Print a marked paragraph: in a window with its lines one below the other, in a log in a single line."""
    from rich.table import Table
    from rich.text import Text

    if not console.is_terminal and _asked_width() is None:
        console.print(Text.assemble(mark, " ", text) if mark[0] else text, soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 1))
    grid.add_row(Text.assemble(mark), text)
    console.print(grid)


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    import json

    print(json.dumps(value, indent=2))


def print_line(text: str) -> None:
    """Print a line on standard output that is neither broken nor styled, whatever its width."""
    print(printable(text))
