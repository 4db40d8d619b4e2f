"""A user's command tuned by `autotune run` from outside, with what must hold of every such run."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.outcome import Ok, Oom
from autotune.run.best import Best
from autotune.run.folder import read_record
from autotune.run.paths import RunPaths
from autotune.run.record import Record
from tests.e2e.conftest import AUTOTUNE

QUICK = (
    "--sample-time", "0.3s", "--sample-steps", "3", "--proof-time", "2s", "--speed-tolerance", "0.9", "--headroom", "0",
    "--training-time", "1m",
)  # fmt: skip
"""Short probes and no finals. Without predictions growth doubles, and meets an OOM that these would foresee."""


TRACES = ".cache/autotune/"
"""What autotune itself keeps in a home: traces of a model that is named beside the command."""


@dataclass(frozen=True)
class Tuned:
    """A run to its proven winner."""

    paths: RunPaths
    best: Best
    record: Record
    output: str


def tuned(
    folder: Path, command: str, *options: str, device: str, samples: int, foreseen: bool = False
) -> Tuned:
    """Run a command in the folder where its script lies, and check what must hold of every such run.

    A proven winner at the global batch, memory that was really refused on the way (unless `foreseen`), files as they
    were, none that is not named, and no process left. HOME is an empty folder beside.
    """
    before = digests(folder)
    done = subprocess.run(
        arguments(command, *options, device=device, samples=samples, foreseen=foreseen),
        cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return looked_at(folder, before, samples, done.stderr, foreseen)


def arguments(command: str, *options: str, device: str, samples: int, foreseen: bool = False) -> list[str]:
    """Return how a command is tuned, in short probes."""
    return [
        *AUTOTUNE, "run", "--command", command, "--device", device, "--target-global-batch",
        f"{samples} samples", *QUICK, *([] if foreseen else ["--no-predict"]), *options,
    ]  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    """Return this process's own, with an empty home."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    return {**os.environ, "HOME": str(home)}


def looked_at(
    folder: Path, before: dict[str, str], samples: int, output: str, foreseen: bool = False
) -> Tuned:
    """Return the one run in a folder, whose files had these digests before; check what `tuned` says."""
    (root,) = (one for one in (folder / "runs").iterdir() if one.is_dir() and not one.is_symlink())
    run = Tuned(RunPaths(root), Best.read(root / "best.yaml"), read_record(RunPaths(root).journal), output)
    check(run, samples, foreseen)
    after = digests(folder)
    assert {name: after.get(name) for name in before} == before, "a file of the user's own was changed"
    left = {name for name in after.keys() - before.keys() if not name.startswith("runs/")}
    home = folder.parent / "home"
    left |= {str(home / name) for name in digests(home) if not name.startswith(TRACES)}
    assert left <= set(run.record.written), (
        "a file was left outside of the scratch folder, and nobody says so"
    )
    assert all(any(name in note for note in run.best.notes) for name in sorted(left)[:8])
    assert not processes(folder), "a process is left"
    return run


def processes(folder: Path) -> list[int]:
    """Return the processes that run in a folder, as those of its command do."""
    here = str(folder)
    return [one.pid for one in psutil.process_iter(["cwd"]) if one.info["cwd"] == here]


def check(run: Tuned, samples: int, foreseen: bool = False) -> None:
    """Check that a winner was proven at the global batch, and that memory was refused on the way, or `foreseen`."""
    outcomes = [trial.outcome for trial in run.record.history]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Oom)]
    assert refused or foreseen, [outcome.kind for outcome in outcomes]
    assert run.best.proof is not None
    assert run.best.proof.passed
    assert run.best.accumulation.difference == 0
    assert run.best.candidate.micro_batch * run.best.accumulation.steps * run.best.gpus == samples
    for trial in run.record.history:
        if isinstance(trial.outcome, Ok):
            assert trial.outcome.memory.peak() <= trial.outcome.memory.budget


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of every file below a folder, by name."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
