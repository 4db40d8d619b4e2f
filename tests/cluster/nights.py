"""The same six cells on two partitions of any engine, two probes at a time."""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import cached_property

from autotune.executors.orders import JobFolder
from autotune.outcome import Lost
from autotune.run.journal import read_record
from tests.cluster.probes import BEHAVING, LONG, started, training, wait_for

FILE = f"""
name: nightly
matrix:
  model: ["{BEHAVING}:waits", "{BEHAVING}:grows", tiny-gpt2]
  hardware: [small, large]
  goal: [short]
include:
  - {{model: "{BEHAVING}:grows", max_probes: 3}}
hardware:
  small: {{device: "cpu:1GiB", cluster: cluster.yaml, partition: small}}
  large: {{device: "cpu:1GiB", cluster: cluster.yaml, partition: large}}
goals:
  short: {{target_global_batch: 8 samples, seq_len: 16, headroom: 0, predict: false, strategy: graph}}
limits:
  {{max_probes: 1, sample_time: 0.3s, proof_time: 0.5s, speed_tolerance: 0.9, memory_tolerance: 0.9}}
"""
WAITS, GROWS, TINY = (
    [f"{model}-{place}" for place in ("small-short", "large-short")]
    for model in ("behaving.py-waits", "behaving.py-grows", "tiny-gpt2")
)
WINNERS = dict.fromkeys(WAITS + TINY, 1) | dict.fromkeys(GROWS, 2)
"""Micro-batches of the winners: four samples of the model that grows take more than a job is granted."""


class Night(ExitStack):
    """A night under way; its controller is ended with the body."""

    def __init__(self, cluster):
        super().__init__()
        self.folder = cluster.parent
        (self.folder / "sweep.yaml").write_text(FILE)
        self._start("run", str(self.folder / "sweep.yaml"))

    @cached_property
    def cells(self):
        """Return the folder of the cells' runs, as soon as it is there."""
        nights = self.folder / "runs" / "sweeps" / "nightly"
        return wait_for(lambda: next(iter(nights.glob("*/cells")), None))

    def _start(self, *command):
        with (self.folder / "told").open("a") as told:
            options = "--runs", self.folder / "runs", "--json"
            self._controller = self.enter_context(started("sweep", *command, *options, stderr=told))

    def first_probe(self, cell, attempt=1):
        """Wait until the first probe of a cell trains; return its job."""
        return training(self.cells / cell / "probes" / "0001", attempt)

    def attempts(self, cell):
        """Return the jobs of the first probe of a cell."""
        return JobFolder.existing(self.cells / cell / "probes" / "0001")

    def kill(self):
        """Kill the controller, as kill -9 does."""
        self._controller.kill()
        self._controller.communicate()

    def resume(self):
        """Go on, in another process."""
        self._start("resume", str(self.cells.parent))

    def ended(self):
        """Wait for the end; return what `--json` says."""
        said, _ = self._controller.communicate(timeout=LONG)
        told = (self.folder / "told").read_text()
        assert self._controller.returncode == 0, told
        return json.loads(said)

    def outcomes(self, cell):
        """Return what came of all tries of all probes of a cell."""
        entries = read_record(self.cells / cell / "journal.jsonl").entries
        return [entry.outcome for entry in entries if hasattr(entry, "outcome")]

    def causes(self, cell):
        """Return why tries of a cell's probes were lost."""
        return [outcome.cause for outcome in self.outcomes(cell) if isinstance(outcome, Lost)]


def winners(document):
    """Return the micro-batch of each cell's winner, all of which are proven."""
    ended = {one["cell"]: one["ended"] for one in document["results"]}
    assert {one["state"] for one in ended.values()} == {"proven"}, ended
    return {cell: one["winner"]["micro_batch"] for cell, one in ended.items()}
