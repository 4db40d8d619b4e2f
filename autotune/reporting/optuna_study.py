"""The trials of a run as a study of Optuna, in a file that its dashboard and its visualizations open."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.candidate import AXES
from autotune.errors import InputError, unwritable
from autotune.reporting.reported import Reported
from autotune.reporting.trial_rows import trial_rows
from autotune.run.events import Started
from autotune.run.paths import RunPaths

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

_ATTRIBUTES = (
    "title", "verdict", "fits", "peak", "predicted_peak", "half_width", "at_most", "global_step",
    "predicted_global_step", "seconds", "node", "why", "why_not",
)  # fmt: skip
"""What stands beside a trial's parameters and its value."""


def write_study(paths: RunPaths, file: Path) -> None:
    """Write a run as a study named after it into a new SQLite file.

    Its value is tokens per second at the global batch, which it maximizes; its constraint is the bytes by which a
    peak is over what may be taken, at most 0. What ended early because it could not win is pruned, with the bound of
    its speed; what did not train has failed. Raises InputError where the file is there already or cannot be written, or
    where the run has no trials yet.
    """
    if os.path.lexists(file):
        raise InputError(f"--optuna {file} is there already; name a new file", about="optuna")
    if not file.parent.is_dir():
        raise InputError(f"--optuna {file}: there is no folder {file.parent}", about="optuna")
    run = Reported.read(paths)
    if run.context is None or not run.record.history:
        raise InputError(f"{paths.root} has no trials yet", about="run")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "study.db"
        _store(run, made)
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            shutil.copyfile(made, beside)
            beside.replace(file)
        except OSError as error:
            raise unwritable(f"--optuna {file} cannot be written", error, "optuna") from None
        finally:
            with suppress(OSError):  # where nothing can be written nothing can be removed
                beside.unlink(missing_ok=True)


def _store(run: Reported, file: Path) -> None:
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study = optuna.create_study(storage=storage, study_name=run.paths.id, direction="maximize")
            study.set_metric_names(["tokens per second"])
            for name, value in _about(run).items():
                study.set_user_attr(name, value)
            study.add_trials(frozen_trials(run))
    finally:
        storage.remove_session()
        storage.engine.dispose()
        optuna.logging.set_verbosity(before)


def frozen_trials(run: Reported) -> list[FrozenTrial]:
    """Return the trials in Optuna's words, in order."""
    from optuna.trial import TrialState, create_trial

    assert run.context is not None
    rows = trial_rows(run)
    distributions = _distributions(rows)
    began = {entry.number: entry.time for entry in run.record.entries if isinstance(entry, Started)}
    found = []
    for row in rows:
        speed, bound, peak = row["tokens_per_second"], row["at_most"], row["peak"]
        state = TrialState.PRUNED if bound is not None else TrialState.FAIL
        state = TrialState.COMPLETE if speed is not None else state
        trial = create_trial(
            state=state, value=speed, distributions=distributions,
            params={name: row[name] for name in distributions},
            user_attrs={name: row[name] for name in _ATTRIBUTES if row[name] is not None},
            intermediate_values={} if bound is None else {0: bound},
            constraints=None if peak is None else {"bytes over what may be taken": float(peak - run.context.usable)},
        )  # fmt: skip
        start = datetime.fromisoformat(began[row["number"]]).astimezone(UTC).replace(tzinfo=None)
        trial.datetime_start, trial.datetime_complete = start, start + timedelta(seconds=row["seconds"])
        found.append(trial)
    return found


def _distributions(rows: list[dict[str, Any]]) -> dict[str, BaseDistribution]:
    """Return what the trials were drawn from: the axes in which they differ, and the micro-batch."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    found: dict[str, BaseDistribution] = {
        "micro_batch": IntDistribution(1, max(row["micro_batch"] for row in rows), log=True)
    }
    for axis in AXES:
        values = list(dict.fromkeys(row[axis] for row in rows))
        if len(values) > 1:
            found[axis] = CategoricalDistribution(values)
    return found


def _about(run: Reported) -> dict[str, Any]:
    spec, best = run.spec, run.best
    about: dict[str, Any] = {
        "model": spec.model.name, "device": str(spec.device), "global batch": str(spec.goal.target),
        "objective": spec.goal.objective.name, "evidence": spec.device.evidence,
    }  # fmt: skip
    if best is not None and (winner := run.winner) is not None:
        about["winner"] = f"trial {winner.number - 1} (probe {winner.number})"
    return about
