"""One table of exit codes: what errors exit with, what help says, and what the README shows."""

import re
from pathlib import Path

from autotune import errors
from autotune.cli import app
from autotune.exit_codes import BY_VERB, MEANINGS, ExitCode, summary

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def test_every_code_has_a_meaning_and_a_verb():
    assert set(MEANINGS) == set(ExitCode)
    assert set().union(*BY_VERB.values()) == set(ExitCode)


def test_the_readme_shows_the_table():
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", README, re.MULTILINE)
    assert rows == [(str(code.value), meaning) for code, meaning in MEANINGS.items()]


def test_help_ends_with_the_table():
    assert app.info.epilog == summary()


def test_every_error_exits_with_a_code_of_the_table():
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(found) > 5
    assert {type(kind.exit_code) for kind in found} == {ExitCode}
