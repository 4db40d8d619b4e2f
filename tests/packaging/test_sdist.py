"""The source distribution is a checkout: it builds, has the same files, and its own tests pass in it."""

import subprocess
import tarfile
import tomllib

import pytest

from tests.packaging.conftest import ROOT, clean, site

QUICK = (
    "tests/words/test_walls.py", "tests/words/test_wording.py", "tests/words/test_environment.py",
    "tests/docs/test_pages.py", "tests/search/test_space.py", "tests/devices/test_hardware.py", "tests/exports",
    "tests/reporting",
)  # fmt: skip
"""What is run of them: what looks at the tree, and what reads files that are no code. All are collected, which needs
every helper and all data; and the files that they test are those of the checkout, where all of them run."""


@pytest.fixture
def unpacked(built, tmp_path):
    with tarfile.open(built("sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.glob("autotune-*")
    return folder


def contents(root):
    """Return the bytes of every file that is published, by name."""
    named = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    found = [path for pattern in named["include"] for path in root.glob(pattern.removeprefix("/"))]
    files = [file for path in found for file in (path.rglob("*") if path.is_dir() else [path])]
    return {
        file.relative_to(root).as_posix(): file.read_bytes()
        for file in files
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_it_holds_what_the_checkout_does_byte_for_byte(unpacked):
    assert contents(unpacked) == contents(ROOT)


@pytest.mark.timeout(1800)
def test_its_own_tests_pass_in_it(unpacked, environment):
    (site(environment) / "editable.pth").write_text(str(unpacked))  # as `make` installs it

    def run(*arguments):
        command = [environment, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(command, cwd=unpacked, env=clean(), capture_output=True, text=True)

    found = run("--collect-only", "tests")
    assert found.returncode == 0, found.stdout[-3000:]
    ran = run("-m", "not slow and not long and not gpu and not alone", *QUICK)
    assert ran.returncode == 0, ran.stdout[-6000:]
