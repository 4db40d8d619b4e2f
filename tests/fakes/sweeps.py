"""Sweeps on arithmetic: a file of them, and what stands for the devices."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from autotune.executors.local import LocalExecutor
from autotune.run.journal import read_record
from autotune.run.paths import RunPaths
from autotune.specs import DeviceSpec, RunSpec
from autotune.sweep.asked import AskedSweep
from autotune.sweep.execution import Hands
from autotune.sweep.night import NightPaths
from autotune.sweep.start import run_night
from tests.fakes.executor import ArithmeticExecutor
from tests.fakes.runs import BIG, ArithmeticTracer

TWO_BY_TWO: dict[str, Any] = {
    "name": "nightly",
    "matrix": {
        "model": ["gpt2", "tiny-llama"],
        "hardware": ["small"],
        "goal": ["short", "long"],
        "space": "minimal",
    },
    "hardware": {"small": {"device": "cpu:1GiB", "at_once": 2, "price_per_hour": "2 USD"}},
    "goals": {
        "short": {"target_global_batch": "1600 samples", "seq_len": 64},
        "long": {"target_global_batch": "1600 samples", "seq_len": 128},
    },
    "limits": {"max_probes": 5, "sample_time": 10, "proof_time": 10},
}
"""Four cells on one hardware."""


def write_sweep(folder: Path, **changes: Any) -> Path:
    """Write a sweep file: `TWO_BY_TWO`, but for some keys."""
    file = folder / "sweep.yaml"
    file.write_text(json.dumps({**TWO_BY_TWO, **changes}))
    return file


class ArithmeticExecution:
    """Answers the probes of every run by arithmetic; `executor` makes a run's executor, where it is another."""

    def __init__(self, make: Callable[[RunSpec], ArithmeticExecutor] | None = None) -> None:
        self._make = make or (lambda spec: ArithmeticExecutor(BIG))
        self.runs: list[tuple[RunSpec, DeviceSpec]] = []

    @contextmanager
    def hands(self, spec: RunSpec, device: DeviceSpec, root: Path) -> Iterator[Hands]:
        self.runs.append((spec, device))
        yield Hands(self._make(spec), ArithmeticTracer(BIG))


def anything(device: DeviceSpec, ranks: int) -> DeviceSpec:
    """Find every device, as no machine does."""
    return device


def asked(folder: Path, **changes: Any) -> AskedSweep:
    """Return `TWO_BY_TWO`, but for some keys, as a sweep that is asked for."""
    return AskedSweep.read(write_sweep(folder, **changes), anything)


def finished_already(folder: Path) -> bool:
    """Tell whether a run's journal has the verdict of the probe, the rematch or the proof that a folder is for."""
    paths, name = RunPaths(folder.absolute().parents[1]), folder.name
    if not paths.journal.exists():
        return False
    record = read_record(paths.journal)
    if name == "inspect":
        return record.inspection is not None
    if name.endswith("-proof"):
        return any(proof.number == int(name[:4]) for proof in record.proofs)
    if "-final" in name:
        number, _, round_ = name.partition("-final")
        return any((one.number, one.round) == (int(number), int(round_)) for one in record.rematches)
    return name.isdecimal() and record.finished(int(name)) is not None


class ProcessExecution:
    """Arithmetic in processes of its own, under real supervisors; the second probe of each run may wait for ever."""

    def __init__(self, wait: bool) -> None:
        self._wait = wait

    @contextmanager
    def hands(self, spec: RunSpec, device: DeviceSpec, root: Path) -> Iterator[Hands]:
        from benchmarks.fault_tuner import ArithmeticDevice, Hooks, arithmetic_launch

        hooks = Hooks(waits_in=lambda _, folder: "forward" if self._wait and folder.name == "0002" else None)
        executor = LocalExecutor(ArithmeticDevice(), partial(arithmetic_launch, hooks))
        yield Hands(executor, ArithmeticTracer(BIG))


def run_in_processes(file: str, night: str, wait: bool) -> None:
    """Run what is left of a night, or begin it: what a controller of its own does in tests."""
    paths = NightPaths(Path(night))
    run_night(AskedSweep.read(Path(file), anything), paths, execution=ProcessExecution(wait))
