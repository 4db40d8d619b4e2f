"""The README cannot drift: each of its commands runs as it stands there, in order, in one folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import autotune
from autotune.cli import app
from tests.docs.readme import README, commands
from tests.e2e.conftest import autotune as call

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.alone
def test_every_command_of_the_readme_runs(winner):
    folder, _ = winner  # the README's own run
    (best,) = (path.relative_to(folder) for path in folder.glob("runs/*/best.yaml"))
    for command in commands():
        if command[:2] == ["autotune", "run"]:
            continue
        assert command[0] == "autotune"
        done = call(*(str(best) if part == "runs/*/best.yaml" else part for part in command[1:]), cwd=folder)
        assert done.code == 0, f"{command}: {done.stderr}"
        assert done.stdout or done.stderr


def test_set_up_is_two_commands_that_the_makefile_has():
    block = README.split("## Set up")[1].split("##")[0]
    targets = re.findall(r"^    make (\w+)", block, re.MULTILINE)
    assert targets == ["run", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in makefile for target in targets)


def test_every_verb_is_in_the_readme_and_the_other_way_round():
    verbs = {(c.name or c.callback.__name__) for c in app.registered_commands} | {
        g.name for g in app.registered_groups
    }
    table = README.split("| verb |")[1].split("\n\n")[0]
    assert {word for word in re.findall(r"`(\w+)", table) if word in verbs} == verbs


def test_python_examples_parse_and_use_what_exists():
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "autotune"
            ):
                assert node.attr in autotune.__all__
