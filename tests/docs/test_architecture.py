"""ARCHITECTURE.md has a row for every folder of the program, and in it every file that is there and no other."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
ROWS = dict(re.findall(r"^\| `([a-z]+)/` \|[^|]*\|(.*)\|$", PAGE, re.MULTILINE))
"""What a folder's row names, by the folder."""


def test_every_folder_has_a_row():
    folders = {path.parent.name for path in (ROOT / "autotune").glob("*/__init__.py")}
    assert {*ROWS, "cli"} == folders
    assert "`cli/`" in PAGE


@pytest.mark.parametrize("folder", sorted({*ROWS} - {"worker"}))  # which has paragraphs of its own
def test_a_row_names_the_files_of_its_folder(folder):
    named = {word for words in re.findall("`([a-z0-9_ /]+)`", ROWS[folder]) for word in words.split()}
    files = {path.stem for path in (ROOT / "autotune" / folder).glob("*.py")} - {"__init__"}
    assert not files - named
    there = ROOT / "autotune" / folder
    assert not [word for word in named if not ((there / f"{word}.py").exists() or (there / word).exists())]
