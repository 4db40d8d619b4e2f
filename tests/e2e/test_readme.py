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


def measures(line: str) -> bool:
    """Tell whether a line trains on this machine, or looks at the run that did, which is the last one then."""
    words = line.split()
    return "last" in words or (words[1] == "run" and "sim:" not in line and not starts_a_script(line))


def starts_a_script(line: str) -> bool:
    """Tell whether a line tunes a training script of the user's own."""
    return "--command" in line


def given_to_a_shell(wanted: list[str], folder: Path) -> list[tuple[str, Ended]]:
    """Run lines in a folder, one after the other, and return each with what it gave."""
    path = f"{Path(AUTOTUNE[0]).parent}{os.pathsep}{os.environ['PATH']}"
    given = []
    for line in wanted:
        done = subprocess.run(
            ["sh", "-c", line], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True,
            timeout=900,
        )  # fmt: skip
        assert line.startswith("autotune ")
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert done.stdout or done.stderr
        given.append((line, Ended(done.returncode, done.stdout, done.stderr)))
    return given


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_the_readmes_first_run_and_all_that_looks_at_it_go_in_order_in_one_folder(tmp_path):
    """What is told, and in which order, is what the README shows; numbers differ from machine to machine."""
    given = given_to_a_shell([line for line in lines() if measures(line)], tmp_path)
    (shown,) = re.findall(r"```text\n(run runs/.*?)```", README, re.DOTALL)
    printed = given[0][1].stdout + given[0][1].stderr
    for line in shown.splitlines():
        if row := re.match(r"^  (\w[\w -]*?)  +\S", line):
            if row[1] != "choice":  # only where speed tells nothing
                assert re.search(rf"^  {row[1]}  +\S", printed, re.MULTILINE), line
        elif re.match(r"^[A-Z]", line) and "  " not in line:
            assert f"\n{line}\n" in printed


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_the_readme_predicts_goes_in_order_and_the_simulated_gpu_has_a_winner(tmp_path):
    """These lines compare no speeds of this machine, so they run beside other tests; in a folder of their own."""
    given_to_a_shell([line for line in lines() if not measures(line) and not starts_a_script(line)], tmp_path)
    assert (tmp_path / "estimate.png").exists()
    document = call("report", "last", "--json", cwd=tmp_path).document
    assert document["evidence"] == "predicted"
    assert "ok" in {trial["outcome"]["kind"] for trial in document["trials"]}
    assert document["best"]["candidate"]["compile"] == "regional", "the ladder's fastest, where all fits"
    assert len(document["trials"]) <= 8


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_a_script_of_the_users_own_is_tuned_word_for_word_from_an_empty_folder(tmp_path):
    """The script stays as it is, and nothing lies beside it but the run."""
    (script,) = re.findall(r"```python\n# train.py\n(.*?)```", README, re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    given_to_a_shell([line for line in lines() if starts_a_script(line)], tmp_path)
    document = call("report", "last", "--json", cwd=tmp_path).document
    kinds = {trial["outcome"]["kind"] for trial in document["trials"]}
    assert "ok" in kinds, kinds
    best = document["best"]
    assert best["proof"]["passed"]
    assert best["candidate"]["precision"] == "fp32", "as the watch saw it"
    assert best["command"]["argv"][:3] == ["python", "train.py", "--bs"]
    assert any("training steps only" in note for note in best["notes"])
    assert (tmp_path / "train.py").read_text() == script
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "train.py"]


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
