"""The walls of the house: who may import whom, and what the tuner never loads."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "autotune"

WORDS = (
    "accumulation",
    "assets",
    "bounds",
    "candidate",
    "commands",
    "environment",
    "errors",
    "exit_codes",
    "interruption",
    "lengths",
    "options",
    "outcome",
    "prediction",
    "printable",
    "site",
    "specs",
    "student",
    "trial",
    "units",
    "user_files",
    "validation",
    "variables",
)
"""The files beside the folders that every folder may speak in; each may import those of its kind alone."""

FOLDERS = (
    "techniques", "timeline", "memory", "devices", "timing", "probe", "models", "tracing", "search", "executors", "run",
    "exports", "reporting", "estimation",
)  # fmt: skip
"""From the bottom up. A folder imports the words, itself, and the folders before it."""

TOP = ("keywords", "doctor", "api", "console", "terminal", "cli", "__main__")
"""What puts the folders together; no folder imports it."""

TEMPLATES = PACKAGE / "exports" / "scripts"
"""Programs that an export writes out; they run in the user's training, never in the tuner."""

HEAVY = {"torch", "transformers", "accelerate", "deepspeed"}


def modules() -> dict[str, Path]:
    """Return every module of the package by its name without `autotune.`."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if path.is_relative_to(TEMPLATES):
            continue
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        found[name.removesuffix("__init__").rstrip(".")] = path
    return found


def imports(path: Path, everywhere: bool) -> set[str]:
    """Return what a module imports: at its top level, or with `everywhere` inside functions too."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if everywhere else iter(tree.body)
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def own(names: set[str], known: dict[str, Path]) -> set[str]:
    """Return which of the imported names are modules of the package."""
    inside = {name.removeprefix("autotune.") for name in names if name.startswith("autotune.")}
    return {name for name in inside if name in known}


def place(name: str) -> str:
    """Return the folder of a module, or the module itself where it stands beside the folders."""
    return name.partition(".")[0]


def test_every_module_has_its_place():
    places = {place(name) for name in modules() if name}
    unknown = places - {*WORDS, *FOLDERS, *TOP, "worker"}
    assert not unknown, f"{sorted(unknown)} stand nowhere: add them here and to ARCHITECTURE.md"


def test_only_the_worker_imports_torch_and_nothing_imports_the_worker():
    wrong = [
        name
        for name, path in modules().items()
        if name and place(name) != "worker"
        and ({imported.split(".")[0] for imported in imports(path, everywhere=True)} & HEAVY
             or {place(target) for target in own(imports(path, everywhere=True), modules())} & {"worker"})
    ]  # fmt: skip
    assert not wrong


def test_folders_import_those_below_them_alone():
    order = {folder: rank for rank, folder in enumerate((*WORDS, *FOLDERS))}
    order |= dict.fromkeys(WORDS, 0) | dict.fromkeys((*TOP, "worker"), len(order))
    known = modules()
    wrong = [
        f"{name} imports {target}"
        for name, path in known.items()
        if name
        for target in own(imports(path, everywhere=True), known)
        if target and order[place(target)] > order[place(name)]
    ]
    assert not wrong, "\n".join(wrong)


def test_there_is_no_import_cycle():
    known = modules()
    TopologicalSorter(
        {name: own(imports(path, everywhere=False), known) for name, path in known.items()}
    ).prepare()


def test_there_is_no_cycle_between_folders():
    known = modules()
    edges: dict[str, set[str]] = {}
    for name, path in known.items():
        if name:
            targets = {place(target) for target in own(imports(path, everywhere=True), known) if target}
            edges.setdefault(place(name), set()).update(targets - {place(name)})
    TopologicalSorter(edges).prepare()


def test_the_command_line_loads_nothing_heavy():
    script = "import sys, autotune.cli; print([m for m in sys.modules if '.' not in m])"
    loaded = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in ("torch", "transformers", "optuna", "pandas", "ray", "numpy", "pydantic", "ruamel", "psutil"):
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
