"""A run at another commit: its command line, started in a worktree of its own, and what it came to."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML

from autotune.cache_folder import VARIABLE
from autotune.candidate import Candidate
from autotune.probe.folder import ProbeFolder
from autotune.run.journal import read_record
from autotune.run.paths import RunPaths
from benchmarks.grid_definitions import Definition
from benchmarks.grid_oracle import told
from benchmarks.grid_recorder import ROOT
from benchmarks.peer_searches import Tried
from benchmarks.verdict import unmeasured

TIMEOUT = 1800.0
"""Seconds for one run."""
COMMAND = "from autotune.cli import main; main()"


@dataclass(frozen=True)
class Case:
    """One run, as its command line."""

    name: str
    arguments: tuple[str, ...]
    """Behind `autotune run`."""

    def option(self, name: str) -> str:
        """Return the value of an option."""
        return self.arguments[self.arguments.index(name) + 1]

    def definition(self) -> Definition:
        """Return the model, the budget and the global batch as grids name them; only the plain rung is searched."""
        return Definition(
            self.name, "as the run has it", self.option("--model"), {}, int(self.option("--seq-len")),
            self.option("--device"), self.option("--target-global-batch"), {"checkpointing": ("none", "full")},
        )  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """What one run came to."""

    seconds: float
    """Wall time of its process."""
    winner: Candidate | None
    """None where there is none, or none that today's candidates express."""
    told: str
    promised: tuple[float, float]
    """Tokens per second in its `best.yaml` with the half-width of their interval; zeros where there is none."""
    probes: int
    paths: RunPaths | None = None
    began: float = 0.0
    """By the clock of the file system."""

    def row(self) -> dict[str, Any]:
        """Return it for the record."""
        return {
            "seconds": self.seconds,
            "winner": self.told,
            "promised": self.promised,
            "probes": self.probes,
        }


@contextlib.contextmanager
def worktree(commit: str, folder: Path) -> Iterator[Path]:
    """Check a commit out, and remove it behind the body."""
    tree = folder / "tree"
    git = ["git", "-C", str(ROOT), "worktree"]
    try:
        subprocess.run(
            [*git, "add", "--quiet", "--detach", str(tree), commit],
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", "") or str(error)
        raise unmeasured("older_commit", f"commit {commit} cannot be checked out (a clone with its whole history "
                                         f"has it): {why}") from None  # fmt: skip
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=False, capture_output=True)


def in_fp32(tree: Path, case: Case, folder: Path) -> Case:
    """Return a case in which a tree's own default space has fp32 wherever it sets bf16; as it is where it names one."""
    if "--space" in case.arguments:
        return case
    space = folder / "fp32.yaml"
    default = (tree / "search_spaces" / "default.yaml").read_text(encoding="utf-8")
    space.write_text(re.sub(r"\bprecision: bf16\b", "precision: fp32", default), encoding="utf-8")
    return replace(case, arguments=(*case.arguments, "--space", str(space)))


def run(tree: Path, case: Case, folder: Path) -> Ran:
    """Run a tree's command line as a user does, with an empty cache."""
    folder.mkdir(parents=True)
    cache = str(folder / "cache")
    environment = {**os.environ, "PYTHONPATH": str(tree), VARIABLE: cache, "XDG_CACHE_HOME": cache}
    began, clock = time.monotonic(), time.time()
    done = subprocess.run(
        [sys.executable, "-P", "-c", COMMAND, "run", *case.arguments], cwd=folder, env=environment,
        capture_output=True, text=True, check=False, timeout=TIMEOUT,
    )  # fmt: skip
    seconds = time.monotonic() - began
    found = sorted((folder / "runs").glob("*/journal.jsonl"))
    if not found:
        raise unmeasured("older_commit", f"{case.name}: {tree.name} did not start: {done.stderr[-400:]}")
    paths = RunPaths(found[0].parent)
    probes = paths.journal.read_text().count('"type":"finished"')  # in the journals of both
    if done.returncode or not paths.best.exists():
        print(f"{case.name}: {done.stderr[-600:]}", file=sys.stderr)
        return Ran(
            seconds, None, f"no winner (exit code {done.returncode})", (0.0, 0.0), probes, paths, clock
        )
    best = YAML(typ="safe").load(paths.best.read_text())
    plain = plain_of(tree)
    changed = {name: value for name, value in best["candidate"].items() if value != plain.get(name)}
    winner = expressed(changed)
    spoken = told(winner) if winner is not None else json.dumps(changed)
    promised = best["tokens_per_second"], best["tokens_per_second_interval"]
    return Ran(seconds, winner, spoken, promised, probes, paths, clock)


def plain_of(tree: Path) -> dict[str, Any]:
    """Return the fields of the plain candidate of a tree's code."""
    code = "from autotune.candidate import Candidate; print(Candidate().model_dump_json())"
    said = subprocess.run(
        [sys.executable, "-P", "-c", code], env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True,
        text=True, check=True,
    ).stdout  # fmt: skip
    plain: dict[str, Any] = json.loads(said)
    return plain


def expressed(changed: dict[str, Any]) -> Candidate | None:
    """Return a candidate of other code as one of today, by what is off its defaults; None where that cannot be said."""
    if not changed.keys() <= Candidate.model_fields.keys():
        return None
    try:
        return Candidate.model_validate(changed)
    except ValidationError:
        return None


def tried_in(ran: Ran) -> tuple[Tried, ...]:
    """Return a run's probes of today, each with the seconds from the start of the process to its verdict."""
    assert ran.paths is not None
    found = []
    for trial in read_record(ran.paths.journal).history:
        result = ProbeFolder(ran.paths.probe(trial.number)).result
        if result.exists():  # else it was refused, and nothing was launched
            found.append(Tried(trial.candidate, trial.outcome, result.stat().st_mtime - ran.began))
    return tuple(found)
