"""What is exported of real runs, started as a user starts it: what the libraries then do is seen from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.exports import export
from autotune.run.best import Best
from autotune.run.write_best import write_files
from tests.e2e.conftest import ROOMY, SHORT, autotune

WATCHING = Path(__file__).with_name("watching")
LAYERS = 2
"""Of tiny-gpt2, whose name for what is inside of each is GPT2MLP."""
PARAMETERS = 149_248
STEPS = 2
SAMPLES = 6
SEQ_LEN = 128

SPACE = """\
name: one
description: One candidate.
axes: {{{axes}}}
graph:
  start: only
  nodes:
    only:
      title: The candidate
      set: {{{axes_set}}}
"""


@dataclass(frozen=True)
class Trained:
    """What the processes of a training did."""

    ranks: list
    output: str

    def check(
        self,
        best: Best,
        *,
        times: int | None = None,
        layers: int = LAYERS,
        before: int = 0,
        groups_end: bool = True,
    ) -> None:
        """Check micro-batch, accumulation, checkpointing, tokens a step and the number of processes.

        `times` is how often a block is run for each micro-step; by the candidate's checkpointing unless given. `before`
        are calls of an evaluation ahead of the first step. `groups_end` is False where the library keeps its process
        groups out of the script's reach: gloo's threads then outlive the training, and can end a process as its
        interpreter ends.
        """
        candidate = best.candidate
        times = times or (2 if candidate.checkpointing == "full" else 1)
        assert len(self.ranks) == best.gpus, self.output[-2000:]
        for rank in self.ranks:
            assert (rank["of_groups"] == []) == groups_end, (
                "threads of process groups when the training has ended"
            )
            assert len(rank["steps"]) == STEPS
            for number, step in enumerate(rank["steps"]):
                shapes = [call[:2] for call in step["calls"][0 if number else before :]]
                assert shapes == [[candidate.micro_batch, best.seq_len]] * (
                    layers * times * best.accumulation.steps
                )
        first = self.ranks[0]["steps"][0]["calls"][before:]
        tokens = sum(batch * length for batch, length, _ in first) // (layers * times) * best.gpus
        assert tokens == best.accumulation.effective

    def dtypes(self) -> set[str]:
        """Return the types of the parameters that forward passes met."""
        return {call[2] for rank in self.ranks for step in rank["steps"] for call in step["calls"]}


@pytest.fixture(scope="session")
def best_of(tmp_path_factory):
    """Return a maker of `best.yaml` by real runs with one candidate each; the same one again is not run again."""
    known: dict[str, Best] = {}

    def run(*, gpus: int = 1, model: str = "tiny-gpt2", **axes: str) -> Best:
        key = json.dumps([gpus, model, axes], sort_keys=True)
        if key not in known:
            folder = tmp_path_factory.mktemp("run")
            text = SPACE.format(
                axes=", ".join(f"{name}: [{value}]" for name, value in axes.items()),
                axes_set=", ".join(f"{name}: {value}" for name, value in axes.items()),
            )
            (folder / "one.yaml").write_text(text)
            ended = autotune(
                "run", "--model", model, "--target-global-batch", f"{SAMPLES} samples", "--device", ROOMY,
                "--gpus", str(gpus), "--headroom", "0", "--space", "one.yaml", "--strategy", "graph", *SHORT,
                "--speed-tolerance", "0.9", cwd=folder,
            )  # fmt: skip
            assert ended.code == 0, ended.stderr
            known[key] = Best.read(next(folder.glob("runs/*/best.yaml")))
        return known[key]

    return run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder of a user's own, where programs of the environment and of its overlay are on the PATH."""
    overlay = Path(sys.executable).parent.parent / "consumers"
    paths = [str(overlay / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(paths))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture
def exported(tmp_path):
    """Return what writes an export and returns its folder."""

    def write(best: Best, target: str) -> Path:
        write_files(export(best, target), tmp_path / target)
        return tmp_path / target

    return write


@pytest.fixture
def train(exported, tmp_path):
    """Return what starts launch.sh of an export and returns what ran."""

    def start(best: Best, target: str, *arguments: str, inside: str = "GPT2MLP") -> Trained:
        folder, seen = exported(best, target), tmp_path / "seen"
        seen.mkdir()
        environment = {
            **os.environ, "PYTHON": sys.executable, "HF_HUB_OFFLINE": "1", "AUTOTUNE_SEEN": str(seen),
            "AUTOTUNE_INSIDE": inside, "PYTHONPATH": f"{WATCHING}:{os.environ.get('PYTHONPATH', '')}",
        }  # fmt: skip
        done = subprocess.run(
            ["sh", str(folder / "launch.sh"), *arguments],
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        ranks = [json.loads(file.read_text()) for file in sorted(seen.glob("*.json"))]
        return Trained(ranks, done.stdout + done.stderr)

    return start
