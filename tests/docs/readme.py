"""The commands that the README shows, as the tests run them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def lines() -> list[str]:
    """Return every line of the README's shell blocks that needs no GPU, word for word and in order."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    shown = [line for block in blocks for line in block.splitlines() if line.strip()]
    return [line for line in shown if "# needs a GPU" not in line]


def commands() -> list[list[str]]:
    """Return the same as argument lists."""
    return [shlex.split(line, comments=True) for line in lines()]
