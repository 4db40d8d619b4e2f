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

LAYERS = [
    ("words", ["exit_codes", "errors", "units", "student", "printable", "commands"]),
    (
        "data",
        ["user_files", "bounds", "validation", "candidate", "lengths", "outcome", "trial", "specs",
         "accumulation", "constraints", "rules", "placement", "graph", "space", "record", "order", "paths",
         "best", "prediction", "variables", "probe.protocol", "probe.ending", "assets", "hardware",
         "devices.device"],
    ),
    (
        "logic",
        ["memory", "timing", "strategies", "drift", "selection", "outlook", "failure", "pricing", "demand", "proof",
         "probe.classify", "probe.ranks", "zero", "exports", "report.wording"],
    ),
    ("machine", ["environment", "interruption", "support", "journal", "scratch", "tracing", "trace_cache",
                 "import_closure", "devices", "probe", "executors", "models", "emission", "train"]),
    ("loop", ["preflight", "runs", "watch", "predictions", "proving", "run", "estimation", "options", "verification",
              "diagnosis", "report", "api"]),
    ("command line", ["console", "terminal", "cli", "__main__"]),
]  # fmt: skip
"""From the bottom up. A module imports its own layer and those below; the longest name that matches counts."""


TEMPLATES = PACKAGE / "exports" / "scripts"
"""Programs that an export writes out; they run in the user's training, never in the tuner."""


def modules() -> dict[str, Path]:
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
    inside = {name.removeprefix("autotune.") for name in names if name.startswith("autotune.")}
    return {name for name in inside if name in known}


def layer(name: str) -> int:
    matches = [
        (len(prefix), rank)
        for rank, (_, prefixes) in enumerate(LAYERS)
        for prefix in prefixes
        if name == prefix or name.startswith(f"{prefix}.")
    ]
    assert matches, f"{name} stands in no layer: add it to LAYERS and to ARCHITECTURE.md"
    return max(matches)[1]


def test_nothing_imports_upwards():
    known = modules()
    wrong = [
        f"{name} ({LAYERS[layer(name)][0]}) imports {target} ({LAYERS[layer(target)][0]})"
        for name, path in known.items()
        if name
        for target in own(imports(path, everywhere=True), known)
        if target and layer(target) > layer(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_there_is_no_import_cycle():
    known = modules()
    TopologicalSorter(
        {name: own(imports(path, everywhere=False), known) for name, path in known.items()}
    ).prepare()


def test_only_workers_touch_torch():
    heavy = {"torch", "transformers", "accelerate", "deepspeed"}
    wrong = [
        name
        for name, path in modules().items()
        if not name.startswith("train") and name != "probe.worker"
        and {imported.split(".")[0] for imported in imports(path, everywhere=True)} & heavy
    ]  # fmt: skip
    assert not wrong


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
        "    if not m.name.startswith(('autotune.worker', 'autotune.exports.scripts')) and m.name not in "
        "('autotune.worker', 'autotune.probe.supervisor'):\n"
        "        importlib.import_module(m.name)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'loaded'\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, env={"PYTHONPATH": str(ROOT)})


def test_mypy_is_strict_for_every_module() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] is True
    assert not [override for override in settings["overrides"] if "strict" in override]
