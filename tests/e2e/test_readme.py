"""The README cannot drift: each of its commands runs as it stands there, in order, in one folder."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

import autotune
from autotune.cli.verbs import VERBS
from tests.docs.readme import README, lines
from tests.e2e.conftest import AUTOTUNE, Ended
from tests.e2e.conftest import autotune as call

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def readme(tmp_path_factory) -> tuple[Path, list[tuple[str, Ended]]]:
    """Return an empty folder in which a shell was given every line of the README in order, with what each gave."""
    folder = tmp_path_factory.mktemp("readme")
    path = f"{Path(AUTOTUNE[0]).parent}{os.pathsep}{os.environ['PATH']}"
    given = []
    for line in lines():
        done = subprocess.run(
            ["sh", "-c", line], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True,
            timeout=900,
        )  # fmt: skip
        given.append((line, Ended(done.returncode, done.stdout, done.stderr)))
    return folder, given


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_every_line_of_the_readme_runs_in_order_in_one_folder(readme):
    folder, given = readme
    assert [line for line, _ in given] == lines()
    for line, ended in given:
        assert line.startswith("autotune ")
        assert ended.code == 0, f"{line}: {ended.stderr}"
        assert ended.stdout or ended.stderr
    assert (folder / "estimate.png").exists()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_the_readmes_run_on_a_simulated_gpu_ends_with_a_winner(readme):
    folder, _ = readme
    document = call("report", "last", "--json", cwd=folder).document
    assert document["evidence"] == "predicted"
    assert "ok" in {trial["outcome"]["kind"] for trial in document["trials"]}
    assert document["best"]["candidate"]["compile"] == "regional", "the ladder's fastest, where all fits"
    assert len(document["trials"]) <= 8


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_what_the_readme_shows_is_what_the_first_run_prints(readme):
    """Numbers differ from machine to machine; what is told, and in which order, does not."""
    _, given = readme
    (shown,) = re.findall(r"```text\n(run runs/.*?)```", README, re.DOTALL)
    printed = given[0][1].stdout + given[0][1].stderr
    for line in shown.splitlines():
        if row := re.match(r"^  (\w[\w -]*?)  +\S", line):
            if row[1] != "choice":  # only where speed tells nothing
                assert re.search(rf"^  {row[1]}  +\S", printed, re.MULTILINE), line
        elif re.match(r"^[A-Z]", line) and "  " not in line:
            assert f"\n{line}\n" in printed


def test_set_up_is_two_commands_that_the_makefile_has():
    block = README.split("## Set up")[1].split("##")[0]
    targets = re.findall(r"^    make (\w+)", block, re.MULTILINE)
    assert targets == ["run", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in makefile for target in targets)


def test_every_verb_is_in_the_readme_and_the_other_way_round():
    table = README.split("| verb |")[1].split("\n\n")[0]
    assert {word for word in re.findall(r"`(\w+)", table) if word in VERBS} == set(VERBS)


def test_python_examples_parse_and_use_what_exists():
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "autotune"
            ):
                assert node.attr in autotune.__all__
