"""The folder of one probe, and how its documents are written."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

_TEMPORARY = re.compile(r"\..+\.[0-9]+")
"""Name under which a file is written, before it is renamed: with the writer's process id."""


@dataclass(frozen=True)
class ProbeFolder:
    """Names every file of one probe. The parent writes all of them but the scratch folder's."""

    root: Path
    """Made absolute, because worker and tuner may work in different folders."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self.root.absolute())

    @property
    def request(self) -> Path:
        """What the worker was asked; written before it starts."""
        return self.root / "request.json"

    @property
    def result(self) -> Path:
        """What was seen of the worker: its answer and its end; written after it ended."""
        return self.root / "result.json"

    @property
    def stdout(self) -> Path:
        """The worker's standard output; never read by autotune."""
        return self.root / "stdout"

    @property
    def stderr(self) -> Path:
        """The worker's standard error; its last lines are shown to the person when a probe crashes."""
        return self.root / "stderr"

    @property
    def scratch(self) -> Path:
        """Mapped files, checkpoints, allocator snapshots: the worker's to fill."""
        return self.root / "scratch"

    def of_rank(self, rank: int) -> ProbeFolder:
        """Return the folder of one of several ranks, inside this one."""
        return ProbeFolder(self.root / f"rank{rank}")

    @property
    def rendezvous(self) -> Path:
        """By this file the ranks of the probe find each other."""
        return self.root / "rendezvous"

    def create(self) -> None:
        """Make the folder with an empty scratch folder; what an earlier attempt left is removed."""
        self.clear_scratch()
        self.scratch.mkdir(parents=True)
        for earlier in (self.request, self.result, self.stdout, self.stderr):
            earlier.unlink(missing_ok=True)

    def clear_scratch(self) -> None:
        """Remove the scratch folder, which can hold many GiB."""
        if self.scratch.exists():
            shutil.rmtree(self.scratch)


def clear_temporaries(folder: Path) -> None:
    """Remove what writers that were killed in `write_atomically` left in a folder that nobody writes to now."""
    for path in folder.glob(".*"):
        if _TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink()


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or nothing: under a temporary name first, then renamed. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
