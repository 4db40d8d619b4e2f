"""What `pip install` gives: all files, types for a type checker, and a command that works from any folder."""

import json
import subprocess
import sys
import zipfile

import pytest

from tests.packaging.conftest import ROOT, clean, site

CONSUMER = """\
import autotune
run: autotune.Run = autotune.load_run("last")
peak: {kind} = run.best.candidate.micro_batch if run.best else 0
"""


@pytest.fixture
def installed(built, environment):
    """Return the Python of an environment in which the wheel is installed."""
    install = ["--python", environment, "install", "--quiet", "--no-deps", "--no-index", built("wheel")]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    assert (site(environment) / "autotune" / "py.typed").exists()
    return environment


def test_it_holds_every_file_of_the_package_and_nothing_else(built):
    held = {name for name in zipfile.ZipFile(built("wheel")).namelist() if ".dist-info/" not in name}
    package = {f"autotune/{path.relative_to(ROOT / 'autotune')}" for path in (ROOT / "autotune").rglob("*.*")}
    spaces = {f"autotune/search_spaces/{path.name}" for path in (ROOT / "search_spaces").glob("*.yaml")}
    assert held == {name for name in package if "__pycache__" not in name} | spaces


def test_the_command_works_from_another_folder(installed, tmp_path):
    variables = {**clean(), "AUTOTUNE_CACHE": str(tmp_path / "cache")}

    def said(*command):
        return subprocess.run(
            command, cwd=tmp_path, env=variables, check=True, capture_output=True, text=True
        ).stdout

    autotune = installed.with_name("autotune")
    where = "import autotune, autotune.assets as assets; print(autotune.__file__, *assets.shipped_names())"
    file, *shipped = said(installed, "-c", where).split()
    assert file.startswith(str(site(installed)))
    assert set(shipped) == {path.stem for path in (ROOT / "search_spaces").glob("*.yaml")}
    listed = said(autotune, "spaces")
    assert all(name in listed for name in shipped if name != "hardware")
    assert "gpt2-xl" in said(autotune, "models")
    # A worker of the installed package traces the model, and the shipped table has the GPU.
    document = json.loads(said(autotune, "estimate", "--model", "tiny-gpt2", "--gpu", "h100-80gb", "--json"))
    assert document["rungs"]


def test_a_type_checker_sees_the_types(installed, tmp_path):
    options = ["--strict", "--python-executable", installed, "--cache-dir", tmp_path / "cache"]
    for kind, problem in (("int", ""), ("str", "[assignment]")):
        file = tmp_path / f"consumer_of_{kind}.py"
        file.write_text(CONSUMER.format(kind=kind))
        ran = subprocess.run(
            [sys.executable, "-m", "mypy", *options, file], cwd=tmp_path, env=clean(), capture_output=True, text=True
        )  # fmt: skip
        assert ran.stderr == ""
        if problem:
            assert problem in ran.stdout
            assert ran.stdout.split(":")[1] == "3"
        else:
            assert ran.stdout.startswith("Success"), ran.stdout
