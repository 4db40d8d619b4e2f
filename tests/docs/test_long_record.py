"""The record of the long tests says of each part on which code it passed, and what is to run is picked by that."""

import json
import math

import pytest

from tests import long_record
from tests.conftest import LONG
from tests.long_record import APART

JUNIT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.e2e.test_long" name="a" time="1.5"/>
<testcase classname="tests.e2e.test_long" name="b" time="2.25">{}</testcase>
<testcase classname="tests.numerics.test_sums" name="c" time="46"/>
</testsuite></testsuites>"""
ONE = (
    """<testsuites><testsuite><testcase classname="tests.{}" name="d" time="{}"/></testsuite></testsuites>"""
)
COMMANDS, SUMS = "tests/e2e/test_long.py", "tests/numerics/test_sums.py"
THEIRS = (COMMANDS, SUMS)


@pytest.fixture
def root(tmp_path):
    """Return a tree as the checkout's, with a file of each sort."""
    python = {
        "autotune/cli.py": "", "autotune/sums.py": "import autotune.units", "autotune/units.py": "",
        "autotune/worker/__main__.py": "import autotune.worker.build", "autotune/worker/build.py": "",
        "benchmarks/verdict.py": "", "tests/conftest.py": "", "tests/numerics/on_sums.py": "import autotune.sums",
        "tests/words/test_units.py": "", "tests/numerics/test_small.py": "", COMMANDS: "@pytest.mark.alone",
        SUMS: "RUN = 'on_sums.py'",
    }  # fmt: skip
    others = (
        "search_spaces/default.yaml",
        "benchmarks/results/old.json",
        "docs/log.md",
        "constraints.txt",
        "tests/order.toml",
    )
    for name, text in {**python, **dict.fromkeys((*others, "pyproject.toml"), "")}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(
            text.replace("@pytest.mark.alone", "import pytest\nmark = pytest.mark.alone")
        )
    (tmp_path / "README.md").write_text("Type:\n```sh\nautotune run\n```\n")
    return tmp_path


def ran(root, child="", seconds=math.inf):
    """Let the long tests have run in a tree, and return the record."""
    folder = root / "build" / "long"
    long_record.begin(root, folder, THEIRS, seconds)
    (folder / "long.xml").write_text(JUNIT.format(child))
    (folder / "alone.xml").write_text(ONE.format("e2e.test_long", 5))
    (folder / "apart.xml").write_text(ONE.format("memory.test_float8", 23))
    return long_record.end(root, folder)


def old(root):
    """Return the parts that have to run again."""
    said = long_record.check(root, THEIRS)
    return {part for part in (*THEIRS, APART) if part in (said or "")}


def test_the_record_says_what_passed_and_where(root):
    assert old(root) == {*THEIRS, APART}
    record = ran(root, "<skipped/>")
    assert json.loads((root / long_record.RECORD).read_text()) == record
    (run,) = record["runs"]
    assert record["runs"][run]["environment"]["torch"]
    part = record["parts"][COMMANDS]
    assert (part["passed"], part["skipped"], part["seconds"], part["alone"], part["run"]) == (
        2,
        1,
        8.8,
        5,
        run,
    )
    assert record["parts"][APART]["seconds"] == 23
    assert long_record.check(root, THEIRS) is None


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("autotune/cli.py", {COMMANDS}), ("autotune/units.py", {COMMANDS, SUMS}), ("tests/conftest.py", "all"),
        ("autotune/worker/build.py", "all"), ("benchmarks/verdict.py", {COMMANDS}), ("constraints.txt", "all"),
        ("search_spaces/default.yaml", "all"), ("tests/numerics/on_sums.py", {COMMANDS, SUMS}),
        (SUMS, {SUMS, APART}), (COMMANDS, {COMMANDS}), ("tests/words/test_units.py", set()),
        ("tests/numerics/test_small.py", {APART}), ("docs/log.md", set()),
        ("tests/order.toml", set()),
        ("benchmarks/results/old.json", set()),
    ],
)  # fmt: skip
def test_only_a_change_of_what_a_part_runs_makes_it_old(root, name, parts):
    ran(root)
    (root / name).write_text(f"{(root / name).read_text()}\n# edited")
    expected = {*THEIRS, APART} if parts == "all" else parts
    if name in {"autotune/units.py", "tests/numerics/on_sums.py"}:
        expected = expected | {APART}  # whose files are all in these folders
    assert old(root) == expected


def test_a_new_file_and_another_command_of_the_readme_make_it_old_and_prose_does_not(root):
    ran(root)
    (root / "README.md").write_text("Please type:\n```sh\nautotune run\n```\n")
    assert not old(root)
    (root / "README.md").write_text("Type:\n```sh\nautotune doctor\n```\n")
    assert old(root) == {COMMANDS}
    ran(root)
    (root / "autotune" / "new.py").write_text("")
    assert old(root) == {COMMANDS}


def test_what_is_not_recorded_comes_first_then_what_passed_longest_ago(root):
    digests = {"a": "1", "b": "2", "c": "3", "d": "4"}

    def known(part, run, seconds, alone=0.0):
        return {"digest": digests[part], "run": run, "seconds": seconds, "alone": alone}

    parts = {
        "a": known("a", "2026-02", 23),
        "b": known("b", "2026-01", 115),
        "c": known("c", "2026-03", 30, 30),
    }
    record = {"parts": parts}
    expected = pytest.approx([10, 50, 30, 60 / long_record.SIDE_BY_SIDE])
    assert [long_record.lasting(record, part) for part in digests] == expected
    assert long_record.pick(record, digests, math.inf) == ["d", "b", "a", "c"]
    assert long_record.pick(record, digests, 70) == ["d", "a", "c"], (
        "what does not fit makes room for what does"
    )
    assert long_record.pick(record, {**digests, "c": "edited"}, 60) == ["d", "c"]


def test_a_run_of_some_parts_leaves_the_others_as_they_were(root):
    before = ran(root)
    (root / "autotune" / "cli.py").write_text("# edited")
    folder = root / "build" / "long"
    assert long_record.begin(root, folder, THEIRS, 10.0) == [COMMANDS]
    commands = {command: long_record.picked(root, folder, command) for command in long_record.COMMANDS}
    assert commands == {"long": [COMMANDS], APART: [], "alone": [COMMANDS]}
    (folder / "long.xml").write_text(ONE.format("e2e.test_long", 4))
    (folder / "alone.xml").write_text(ONE.format("e2e.test_long", 3))
    after = long_record.end(root, folder)
    assert after["parts"][SUMS] == before["parts"][SUMS]
    assert after["parts"][COMMANDS]["seconds"] == 7
    assert long_record.check(root, THEIRS) is None


def test_what_did_not_fit_is_named_with_the_seconds_that_it_takes(root, monkeypatch, capsys):
    record = ran(root)
    (root / "autotune" / "units.py").write_text("changed = 1")
    monkeypatch.setattr(long_record, "ROOT", root)
    monkeypatch.setattr("tests.conftest.LONG", THEIRS)
    assert long_record.main(["begin", str(root / "build" / "long"), "10"]) == 0
    run, left = capsys.readouterr().out.splitlines()
    assert run == f"1 of 3 parts: {COMMANDS}"
    seconds = sum(long_record.lasting(record, part) for part in (SUMS, APART))
    assert left == f"not recorded for this code, and no time left for: {SUMS} {APART} ({seconds:.0f} s more)"
    assert long_record.main(["begin", str(root / "build" / "long")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1, "where there is time for all, none is left"


def test_nothing_is_recorded_of_a_failure_of_what_did_not_run_or_of_code_that_changed_meanwhile(root):
    with pytest.raises(ValueError, match=r"tests\.e2e\.test_long::b did not pass"):
        ran(root, "<failure/>")
    folder = root / "build"
    long_record.begin(root, folder, THEIRS)
    with pytest.raises(ValueError) as unfinished:
        long_record.end(root, folder)
    assert all(command in str(unfinished.value) for command in long_record.COMMANDS)
    for command in long_record.COMMANDS:
        (folder / f"{command}.xml").write_text(ONE.format("e2e.test_other", 1))
    with pytest.raises(ValueError) as missing:
        long_record.end(root, folder)
    assert all(part in str(missing.value) for part in THEIRS)
    (root / "autotune" / "cli.py").write_text("# edited")
    (root / "autotune" / "new.py").write_text("")
    with pytest.raises(ValueError) as changed:
        long_record.end(root, folder)
    assert "autotune/cli.py, autotune/new.py" in str(changed.value)
    assert not (root / long_record.RECORD).exists()


def test_a_part_whose_tests_that_run_alone_were_interrupted_has_not_passed(root):
    """Its tests that run beside others did pass, and say nothing of those."""
    folder = root / "build" / "long"
    long_record.begin(root, folder, THEIRS)
    (folder / "long.xml").write_text(JUNIT.format(""))
    (folder / "apart.xml").write_text(ONE.format("memory.test_float8", 23))
    with pytest.raises(ValueError) as unfinished:
        long_record.end(root, folder)
    assert str(unfinished.value).startswith("alone: ")
    assert not (root / long_record.RECORD).exists()


@pytest.mark.parametrize("folder", ["autotune", "tests/data", "search_spaces"])
def test_what_python_compiles_while_tests_run_is_no_change_of_code(root, folder):
    """As in a fresh clone, where the first test that imports a file of `tests/data` compiles it."""
    begun = root / "build"
    long_record.begin(root, begun, THEIRS)
    compiled = root / folder / "__pycache__" / "observe.cpython-311.pyc"
    compiled.parent.mkdir(parents=True)
    compiled.write_bytes(b"")
    with pytest.raises(ValueError, match="not all tests passed"):
        long_record.end(root, begun)
    assert not old(root) ^ {*THEIRS, APART}


def test_the_files_of_the_long_tests_exist():
    assert all((long_record.ROOT / name).is_file() for name in LONG)


def test_what_processes_of_their_own_run_is_covered():
    """Tests that name a file beside them, ranks that are started by a module's name, and the worker."""
    files = long_record.covered(long_record.ROOT, "tests/numerics/test_pairs.py")
    assert {"tests/numerics/on_pairs.py", "tests/numerics/covering.py", "autotune/worker/training.py"} <= set(
        files
    )
    assert "autotune/cli/run.py" not in files
    assert "tests/memory/on_offloaded_gradients.py" in long_record.covered(
        long_record.ROOT, "tests/memory/test_offloaded_gradients.py"
    )
