"""The commands that the README shows, as the tests run them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def commands() -> list[list[str]]:
    """Return every command of the README's shell blocks that needs no GPU, in order, as argument lists."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    return [shlex.split(line, comments=True) for line in lines if "# needs a GPU" not in line]
