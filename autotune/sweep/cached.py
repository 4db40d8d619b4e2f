"""What of each cell earlier nights have measured already: trials in the store that may stand for its probes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from autotune.errors import InputError
from autotune.executors.find import find_executor, find_tracer
from autotune.results.reuse import since
from autotune.results.reuse_key import asked_digest, environment_of, model_digest
from autotune.results.row import Environment
from autotune.results.store import Origin
from autotune.specs import DeviceSpec, RunSpec
from autotune.sweep.file import SweepFile
from autotune.sweep.matrix import Cell
from autotune.sweep.stored import results_of

FindEnvironment = Callable[[DeviceSpec], Environment]
"""Says what a result measured on a device of this machine depends on."""


def environment_here(device: DeviceSpec) -> Environment:
    """Return what a result measured on a device of this machine depends on. Raises what `find_executor` raises."""
    return environment_of(find_executor(device, find_tracer(device)).describe())


def cached_trials(
    file: SweepFile,
    base: Path,
    cells: Sequence[Cell],
    spec_of: Callable[[Cell], RunSpec],
    environment: FindEnvironment = environment_here,
) -> dict[str, int]:
    """Return, by cell, how many different candidates the store holds a probe of that may stand for one tonight.

    They were measured for the same model, goal and device with the same driver and versions, within `reuse_within`. It
    is empty where the file reuses nothing, or there is no store yet; a cell whose probes are jobs of a cluster is
    missing, because only a job there tells versions. Raises StoreError.
    """
    if file.reuse_within is None:
        return {}
    try:
        with results_of(file, base, create=False) as store:
            assert store is not None, "who reuses has a store"
            known = store.reusable(since(file.reuse_within))
    except InputError:  # none is there yet
        known = {}
    here = cache(environment)
    found = {}
    for cell in cells:
        if file.hardware[cell.hardware].cluster is None:
            spec = spec_of(cell)
            at = here(spec.device)
            origin = Origin(asked_digest(spec), model_digest(spec.model), at.digest())
            found[cell.id] = known.get(origin, 0) if at.evidence == "measured" else 0
    return found
