"""The record of the long tests is of one state of the code, and says when it is of another."""

import json

import pytest

from tests import long_record
from tests.conftest import LONG

JUNIT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.e2e.test_long" name="a" time="1.5"/>
<testcase classname="tests.e2e.test_long" name="b" time="2.25">{}</testcase>
</testsuite></testsuites>"""
THEIRS = ("tests/e2e/test_long.py",)


@pytest.fixture
def root(tmp_path):
    """Return a tree as the checkout's, with a file of each sort."""
    for name in (
        "autotune/cli.py", "search_spaces/default.yaml", "benchmarks/verdict.py", "benchmarks/results/old.json",
        "docs/log.md", "tests/conftest.py", "tests/words/test_units.py", "tests/numerics/test_loss.py", *THEIRS,
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("as it was")
    (tmp_path / "constraints.txt").write_text("torch==2.13.0")
    (tmp_path / "README.md").write_text("Type:\n```sh\nautotune run\n```\n")
    return tmp_path


def ran(root, child=""):
    """Let the long tests have run in a tree, and return the record."""
    folder = root / "build" / "long"
    long_record.begin(root, folder, THEIRS)
    (folder / "one.xml").write_text(JUNIT.format(child))
    return long_record.end(root, folder, THEIRS)


def test_the_record_says_what_passed_and_where(root):
    assert "make test-long" in long_record.check(root, THEIRS)
    record = ran(root, "<skipped/>")
    assert json.loads((root / long_record.RECORD).read_text()) == record
    assert record["files"] == {"tests.e2e.test_long": {"passed": 1, "skipped": 1, "seconds": 3.8}}
    assert record["environment"]["torch"]
    assert long_record.check(root, THEIRS) is None


@pytest.mark.parametrize(
    ("name", "covered"),
    [
        ("autotune/cli.py", True), ("search_spaces/default.yaml", True), ("benchmarks/verdict.py", True),
        ("constraints.txt", True), ("tests/conftest.py", True), ("tests/numerics/test_loss.py", True),
        ("tests/e2e/test_long.py", True), ("tests/words/test_units.py", False), ("docs/log.md", False),
        ("benchmarks/results/old.json", False),
    ],
)  # fmt: skip
def test_only_a_change_of_what_the_long_tests_run_makes_the_record_old(root, name, covered):
    ran(root)
    (root / name).write_text("as it is")
    assert (long_record.check(root, THEIRS) is not None) == covered


def test_a_new_file_and_another_command_of_the_readme_make_it_old_and_prose_does_not(root):
    ran(root)
    (root / "README.md").write_text("Please type:\n```sh\nautotune run\n```\n")
    assert long_record.check(root, THEIRS) is None
    (root / "README.md").write_text("Type:\n```sh\nautotune doctor\n```\n")
    assert long_record.check(root, THEIRS) is not None
    ran(root)
    (root / "autotune" / "new.py").write_text("")
    assert long_record.check(root, THEIRS) is not None


def test_nothing_is_recorded_of_a_failure_or_of_code_that_changed_meanwhile(root):
    with pytest.raises(ValueError, match=r"tests\.e2e\.test_long::b did not pass"):
        ran(root, "<failure/>")
    long_record.begin(root, root / "build", THEIRS)
    (root / "autotune" / "cli.py").write_text("edited")
    with pytest.raises(ValueError, match="while the tests ran"):
        long_record.end(root, root / "build", THEIRS)
    assert not (root / long_record.RECORD).exists()


def test_the_files_of_the_long_tests_exist():
    assert all((long_record.ROOT / name).is_file() for name in LONG)
