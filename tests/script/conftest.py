"""What holds for the tests of a user's own commands."""

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def python_on_the_path(monkeypatch):
    """Have `python` mean the one that runs the tests, as it does in the environment of whoever types a command."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
