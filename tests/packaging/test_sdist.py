"""The source distribution is a checkout: it builds, and its own tests pass in it."""

import subprocess
import tarfile

import pytest

from tests.packaging.conftest import clean, site

QUICK = (
    "tests/words", "tests/docs/test_pages.py", "tests/search", "tests/devices", "tests/exports", "tests/models",
    "tests/reporting", "tests/timing",
)  # fmt: skip
"""What is run of them; all are collected, which needs every helper and all data."""


@pytest.mark.timeout(1800)
def test_its_own_tests_pass_in_it(built, environment, tmp_path):
    with tarfile.open(built("sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("autotune-*")
    (site(environment) / "editable.pth").write_text(str(unpacked))  # as `make` installs it

    def run(*arguments):
        command = [environment, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(command, cwd=unpacked, env=clean(), capture_output=True, text=True)

    found = run("--collect-only", "tests")
    assert found.returncode == 0, found.stdout[-3000:]
    ran = run("-m", "not slow and not long and not gpu and not alone", *QUICK)
    assert ran.returncode == 0, ran.stdout[-6000:]
