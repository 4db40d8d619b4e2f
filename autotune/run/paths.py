"""Every file name of a run, in one place; and what each folder with a journal of its own has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

JOURNAL = "journal.jsonl"
"""What makes a folder one of a run, or of a night of runs."""


@dataclass(frozen=True)
class RecordPaths:
    """A folder with a journal."""

    root: Path

    @property
    def id(self) -> str:
        """What it is called: its folder's name."""
        return self.root.name

    @property
    def journal(self) -> Path:
        """What happened, line by line; only ever appended to."""
        return self.root / JOURNAL

    @property
    def lock(self) -> Path:
        """Held by the process that works on it."""
        return self.root / "lock"


@dataclass(frozen=True)
class RunPaths(RecordPaths):
    """The folder of one run: `runs/<id>/`."""

    @property
    def spec(self) -> Path:
        """What was asked for."""
        return self.root / "spec.yaml"

    @property
    def best(self) -> Path:
        """The proven winner."""
        return self.root / "best.yaml"

    @property
    def finalist(self) -> Path:
        """The configuration under proof; becomes `best.yaml` when it holds."""
        return self.root / "finalist.yaml"

    @property
    def step_memory(self) -> Path:
        """The memory of a step of the winner as its trace has it, for reports; none where nothing was traced."""
        return self.root / "step_memory.json"

    @property
    def probes(self) -> Path:
        """Parent of the probes' folders."""
        return self.root / "probes"

    @property
    def exports(self) -> Path:
        """Where `autotune export` writes unless told otherwise."""
        return self.root / "exports"

    def probe(self, number: int) -> Path:
        """Folder of a numbered probe: `probes/0007`."""
        return self.probes / f"{number:04d}"

    @property
    def inspection(self) -> Path:
        """Folder of the worker that looked at the model before the first probe."""
        return self.probes / "inspect"

    @property
    def tracing(self) -> Path:
        """Folder of the worker that traces a rung for the memory model."""
        return self.probes / "trace"

    def rematch(self, number: int, round_: int) -> Path:
        """Folder of a numbered probe's repetition in a round of the finals: `probes/0007-final1`."""
        return self.probes / f"{number:04d}-final{round_}"

    def proof(self, number: int) -> Path:
        """Folder of the proof of a numbered probe: `probes/0007-proof`."""
        return self.probes / f"{number:04d}-proof"
