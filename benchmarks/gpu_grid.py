"""A grid recorded on a GPU, a few trials a case, and replayed: `--device replay:gpu-grid.jsonl` then needs no GPU.

What was measured is in the grid's own file; a case that was ended goes on behind it and measures nothing twice.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from autotune.candidate import Candidate
from autotune.devices.recorded_grid import RecordedGrid, append_line, read_grid
from autotune.models.resolve import resolve
from autotune.options import Limits
from autotune.probe.launch import Launcher
from autotune.specs import ModelSpec
from benchmarks.evidence import TimeIsUp
from benchmarks.grid_definitions import ROOMY, Definition
from benchmarks.grid_recorder import Recorder, candidates, trace
from benchmarks.record_grid import open_grid

FILE = "gpu-grid.jsonl"
"""Beside the state of the evidence."""
TRIALS = 5
"""Trials of one case."""
WARNING = 15.0
"""Seconds that a trial takes at most, about: with less left none begins."""


PARTS = 9
"""Cases that it takes to record all of it."""


class AsShipped(Definition):
    """A grid of a preset as it is, so that a replay asks for it by its name."""

    def model(self) -> ModelSpec:
        """Return the preset's own specification."""
        return resolve(self.preset, base=Path.cwd())


def definition(device: str, dry: bool) -> Definition:
    """Return what is recorded: sequences and a vocabulary of which eight samples do not fit a GPU's memory."""
    if dry:
        return AsShipped(
            "gpu-grid",
            "a dry run",
            "tiny-gpt2",
            {},
            64,
            device,
            "2 samples",
            {"checkpointing": ("none", "full")},
        )
    return AsShipped(
        "gpu-grid", "long sequences and a large vocabulary on one GPU", "llama-3.2-1b", {}, 8192, device, "8 samples",
        ROOMY,
    )  # fmt: skip


class GpuGrid:
    """Records one definition into a folder, a part at a time."""

    def __init__(self, asked: Definition, folder: Path, launcher: Launcher, limits: Limits) -> None:
        self.path, self.asked = folder / FILE, asked
        self._launcher, self._limits = launcher, limits

    def begin(self) -> dict[str, Any]:
        """Inspect the model and trace its rungs, as far as that is not done."""
        recorder, grid, trials = self._opened()
        missing = [rung for rung in dict.fromkeys(one.rung() for one in trials) if rung not in grid.traces]
        if missing:
            with tempfile.TemporaryDirectory() as cache:
                for line in trace(grid.header, missing, Path(cache), self._launcher):
                    append_line(recorder.path, line)
        return {"file": FILE, "trials": len(trials), "traces": len(read_grid(self.path).traces)}

    def part(self, left: float) -> dict[str, Any]:
        """Measure the next trials that are not recorded, TRIALS of them. Raises TimeIsUp."""
        until = time.monotonic() + left
        recorder, grid, trials = self._opened()
        own = [one for one in trials if one not in grid.points][:TRIALS]
        outcomes: Counter[str] = Counter()
        for one in own:
            if time.monotonic() + WARNING > until and outcomes:
                raise TimeIsUp(f"{sum(outcomes.values())} of {len(own)} trials")
            outcomes[recorder.measure(grid.header, one).outcome.kind] += 1
        return {
            "outcomes": dict(outcomes), "recorded": len(grid.points) + sum(outcomes.values()), "of": len(trials),
        }  # fmt: skip

    def _opened(self) -> tuple[Recorder, RecordedGrid, list[Candidate]]:
        recorder = Recorder.of(self.asked, self.path, self._launcher)
        grid = open_grid(self.asked, recorder, self._limits)
        return recorder, grid, candidates(grid.header, recorder.executor)
