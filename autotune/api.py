"""autotune from Python: the same run as the command line's, with the same options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.best import Best
from autotune.journal import read_record
from autotune.paths import RunPaths
from autotune.record import Record
from autotune.runs import find_run, load_spec, new_run
from autotune.specs import RunSpec
from autotune.watch import Watch


@dataclass(frozen=True)
class Run:
    """A run as its folder holds it."""

    paths: RunPaths
    spec: RunSpec
    record: Record

    @property
    def best(self) -> Best | None:
        """The proven winner, or None where there is none (yet)."""
        if self.record.decided is None or self.record.decided.winner is None:
            return None
        return Best.read(self.paths.best)


def tune(*, runs: Path = Path("runs"), watch: Watch | None = None, **options: Any) -> Best:
    """Find, prove and emit the fastest configuration that fits; return what `best.yaml` says.

    `options` are those of `autotune run`, by their names in a spec YAML: `tune(model="gpt2",
    target_global_batch="64K", device="cpu:4GiB")`. Raises InputError, NothingFits, NothingProven or ModelError.
    """
    from autotune.devices.find import check_device
    from autotune.executors.find import find_executor
    from autotune.options import RunOptions, to_spec
    from autotune.run import tune as loop
    from autotune.tracing import LocalTracer

    spec = to_spec(RunOptions.load(options, "options"), check_device, Path.cwd())
    tracer = LocalTracer()
    executor = find_executor(spec.device, tracer, spec.goal.gpus, spec.goal.nodes)
    with new_run(spec, runs) as paths:
        return loop(spec, paths, executor, watch, tracer)


def load_run(name: str | Path, runs: Path = Path("runs")) -> Run:
    """Return a run by path, by name under `runs`, or the newest for `last`. Raises InputError."""
    paths = find_run(str(name), runs)
    return Run(paths, load_spec(paths), read_record(paths.journal))
