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
    "--training-time", "1m", "--no-predict",
)  # fmt: skip
"""Short probes, no finals, and growth by doubling, which meets an OOM where a prediction would foresee it."""


@dataclass(frozen=True)
class Tuned:
    """A run to its proven winner."""

    paths: RunPaths
    best: Best
    record: Record
    output: str


def tuned(folder: Path, command: str, *options: str, device: str, samples: int, seq_len: int = 256) -> Tuned:
    """Run a command in the folder where its script lies, and check what the issue of it asks.

    A proven winner at the global batch, memory that was really refused on the way, files as they were, none that is not
    named, and no process left. HOME is an empty folder beside.
    """
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    before = digests(folder)
    done = subprocess.run(
        [*AUTOTUNE, "run", "--command", command, "--device", device, "--seq-len", str(seq_len),
         "--target-global-batch", f"{samples} samples", *QUICK, *options],
        cwd=folder, env={**os.environ, "HOME": str(home)}, capture_output=True, text=True, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (root,) = (folder / "runs").iterdir()
    run = Tuned(
        RunPaths(root), Best.read(root / "best.yaml"), read_record(RunPaths(root).journal), done.stderr
    )
    check(run, samples)
    after = digests(folder)
    assert {name: after.get(name) for name in before} == before, "a file of the user's own was changed"
    left = {name for name in after.keys() - before.keys() if not name.startswith("runs/")}
    left |= {str(home / name) for name in digests(home)}
    assert left <= set(run.record.written), (
        "a file was left outside of the scratch folder, and nobody says so"
    )
    assert all(any(name in note for note in run.best.notes) for name in sorted(left)[:8])
    here = str(folder)
    assert not [one for one in psutil.process_iter(["cwd"]) if one.info["cwd"] == here], "a process is left"
    return run


def check(run: Tuned, samples: int) -> None:
    """Check that a winner was proven at the global batch, and that memory was refused on the way."""
    outcomes = [trial.outcome for trial in run.record.history]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Oom)]
    assert refused, [outcome.kind for outcome in outcomes]
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
