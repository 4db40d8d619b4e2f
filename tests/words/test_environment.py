"""What is installed, what is promised, and what would install the rest."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from autotune import environment
from autotune.environment import INSTALLED_AS, how_to_install, lowest
from autotune.estimation.plot import DRAWN_BY
from autotune.techniques.families import DECLARED

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = sorted(
    {name for axis in DECLARED for value in axis.values.values() for name in value.packages}
    | {*DRAWN_BY.values(), *INSTALLED_AS}
)


@pytest.mark.parametrize("package", OPTIONAL)
def test_what_installs_a_package_names_an_extra_that_has_it(package):
    hint = how_to_install(package)
    extra = re.search(r"autotune\[(.+)\]", hint)
    if extra is None:
        assert hint == f"pip install {package}"
    else:
        assert any(entry.startswith(package) for entry in PROJECT["optional-dependencies"][extra[1]])


def test_the_lowest_versions_are_those_of_the_metadata(monkeypatch):
    required = ["torch>=2.13", 'plotly>=6.0; extra == "plots"', "nvidia_ml.py<14,>=12.535", "rich"]
    monkeypatch.setattr(environment.metadata, "requires", lambda name: required)
    assert [lowest(name) for name in ("torch", "plotly", "nvidia_ml.py", "rich", "triton")] == [
        "2.13", "6.0", "12.535", None, None,
    ]  # fmt: skip

    def never_installed(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(environment.metadata, "requires", never_installed)
    assert lowest("torch") is None


def test_the_promised_transformers_is_the_one_that_make_test_versions_runs():
    pins = dict(line.split("==") for line in (ROOT / "lowest.txt").read_text().splitlines() if "==" in line)
    (bound,) = (entry for entry in PROJECT["dependencies"] if entry.startswith("transformers"))
    assert pins["transformers"] == bound.removeprefix("transformers>=") + ".0"
