"""One fault: its name, and what it does to a run before that is resumed to its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fault_trial import Expected, Trial
from benchmarks.fault_tuner import Kind

INPUT = 2
"""The exit code of a tuner whose run cannot be used."""


@dataclass(frozen=True)
class Case:
    """One fault. `run` takes an empty folder and what undisturbed runs come to, and returns the misses."""

    group: str
    name: str
    kind: Kind
    run: Callable[[Path, Expected], list[str]]
    predict: bool = True


def case(group: str, name: str, kind: Kind, work: Callable[[Trial, Expected], None], **more: Any) -> Case:
    """Return the case of what is done to one trial."""

    def run(folder: Path, expected: Expected) -> list[str]:
        trial = Trial(kind, folder, more.get("predict", True))
        work(trial, expected)
        return trial.misses

    return Case(group, name, kind, run, **more)
