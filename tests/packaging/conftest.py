"""What is published, built once, and an environment that has the dependencies but not this checkout."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Return a function that builds `wheel` or `sdist` from this checkout, without a network."""
    made: dict[str, Path] = {}

    def build(target: str) -> Path:
        if target not in made:
            folder = tmp_path_factory.mktemp(target)
            command = [
                sys.executable,
                "-m",
                "hatchling",
                "build",
                "--target",
                target,
                "--directory",
                str(folder),
            ]
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
            (made[target],) = folder.iterdir()
        return made[target]

    return build


@pytest.fixture
def environment(tmp_path):
    """Return the Python of an environment with all that autotune depends on, and no autotune.

    The packages are those of this Python, lent by a path file. Path files beside them do not count there, and an
    editable checkout is one of these.
    """
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    (site(python) / "lent.pth").write_text(sysconfig.get_path("purelib"))
    return python


def site(python: Path) -> Path:
    """Return where an environment's packages lie."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(python.parents[1])}))


def clean() -> dict[str, str]:
    """Return the variables of this process but those that would let another Python find this checkout."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "COVERAGE_", "PYTEST"))
    }
