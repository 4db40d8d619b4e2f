"""The walls of the house: who may import whom, and what the tuner never loads."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]


def test_imports_keep_to_the_walls(monkeypatch, capsys):
    """The contracts stand in pyproject.toml, under `tool.importlinter`; every module has a place in them."""
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == 0, capsys.readouterr().out


def test_the_command_line_loads_nothing_heavy():
    script = "import sys, autotune.cli; print([m for m in sys.modules if '.' not in m])"
    loaded = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in (
        "torch",
        "transformers",
        "optuna",
        "pandas",
        "ray",
        "numpy",
        "scipy",
        "pydantic",
        "ruamel",
        "psutil",
    ):
        assert f"'{name}'" not in loaded


def test_the_package_is_a_program_too(tmp_path):
    help_text = subprocess.run(
        [sys.executable, "-m", "autotune", "--help"], cwd=tmp_path, check=True, capture_output=True, text=True,
        env={"PYTHONPATH": str(ROOT)},
    ).stdout  # fmt: skip
    assert "estimate" in help_text


def test_every_verb_keeps_the_tuner_free_of_torch(tmp_path):
    """Walk through every module that a run of the tuner loads."""
    script = (
        "import sys, pkgutil, importlib, autotune\n"
        "for m in pkgutil.walk_packages(autotune.__path__, 'autotune.'):\n"
        "    apart = 'autotune.worker', 'autotune.exports.scripts', 'autotune.__main__', 'autotune.probe.supervisor'\n"
        "    if not m.name.startswith(apart):\n"
        "        importlib.import_module(m.name)\n"
        "assert not {'torch', 'transformers', 'matplotlib', 'plotly'} & set(sys.modules), 'loaded'\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, env={"PYTHONPATH": str(ROOT)})


def test_mypy_is_strict_for_every_module() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] is True
    assert not [override for override in settings["overrides"] if "strict" in override]
