"""What every stage of a run works with."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.executors.executor import Executor
from autotune.run.callbacks import RunCallbacks
from autotune.run.journal import Journal
from autotune.run.paths import RunPaths
from autotune.site import Site
from autotune.specs import RunSpec


@dataclass
class Stage:
    """A part of the loop of one run: prices, probes, finals or proofs."""

    spec: RunSpec
    paths: RunPaths
    executor: Executor
    site: Site
    """Where probes run, as the executor said when it was asked first."""
    callbacks: RunCallbacks
    journal: Journal
