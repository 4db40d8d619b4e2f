"""What somebody else wrote is printed as text; what cannot be printed at all is one line and an exit code."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from rich.table import Table
from rich.text import Text

from autotune.cli import main
from autotune.console import PlainConsole
from autotune.errors import ModelError
from autotune.printable import printable, quoted, shortened
from autotune.terminal import fail

FOREIGN = "[/red] [bold]x[/] :smile: \x1b[31m \x9b2J \u202egnp.exe over $x_1$"
SHOWN = "[/red] [bold]x[/] :smile: \\x1b[31m \\x9b2J \\u202egnp.exe over $x_1$"
COMMAND = [sys.executable, "-m", "autotune"]


def test_control_characters_are_written_out():
    assert printable(FOREIGN) == SHOWN
    assert printable("two\nlines\tand a tab, ö, 中") == "two\nlines\tand a tab, ö, 中"
    assert printable("\ud800 \0 \x7f \r \x07") == "\\ud800 \\x00 \\x7f \\r \\x07"


def test_long_values_are_cut():
    assert shortened("x" * 100, 10) == "xxxxxxxxxx... (100 characters)"
    assert quoted(10**5000) == "a number of about 5,000 digits"
    assert len(quoted("x" * 10**6)) < 200
    assert len(quoted({"a": [10**5000]})) < 200
    assert quoted("a'b") == '"a\'b"'


@pytest.mark.parametrize("terminal", [True, False])
def test_a_console_reads_nothing_into_text(terminal):
    console = PlainConsole(file=io.StringIO(), force_terminal=terminal, width=200)
    table = Table("column")
    table.add_row(FOREIGN)
    for part in (FOREIGN, Text(FOREIGN), table):
        console.print(part, style="red")
    text = console.file.getvalue()
    assert text.count(SHOWN) == 3
    assert ("\x1b[31m" in text) is terminal  # rich's own red
    assert "\x9b" not in text


def test_an_error_is_bounded_and_printable(capsys):
    with pytest.raises(SystemExit) as ended:
        fail(ModelError(f"{FOREIGN}{'x' * 10**6}\n" * 1000, f"Traceback {FOREIGN}\n" * 1000))
    said = capsys.readouterr().err
    assert ended.value.code == 4
    assert len(said.splitlines()) < 70
    assert len(said) < 100_000
    assert f"error: {SHOWN}" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    "arguments", [["run", "--gpus", "\x1b[31m"], ["nothing\x07"], ["run", "--no\x1bthing", "1"]]
)
def test_a_wrong_option_is_told_like_every_mistake(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("error: ")
    assert "--help" in said or "--gpus" in said
    assert not set("\x1b\x07") & set(said)


@pytest.mark.parametrize("verb", [["models", "--json"], ["--help"]])
def test_a_full_disk_under_the_output_is_one_line(verb):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *verb], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "error: the output cannot be written: No space left on device\n",
    )


def test_a_reader_that_goes_away_is_no_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*COMMAND, "models", "--json"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_without_any_output_nothing_fails():
    done = subprocess.run(["sh", "-c", '"$@" >&- 2>&-', "sh", *COMMAND, "models"])
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("encoding", "said"), [("utf-8", "━ ±1 中"), ("latin-1", "# ±1 \\u4e2d"), ("ascii", "# +-1 \\u4e2d")]
)
def test_what_an_encoding_lacks_is_said_in_ascii_and_ends_nothing(encoding, said):
    program = "from autotune.terminal import *; write_what_can_be_written(); print('\u2501 \u00b11 \u4e2d')"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode(encoding).strip() == said
