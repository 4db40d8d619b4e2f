"""autotune from Python: what the command line does, with the same options by the same names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from autotune.errors import InputError
from autotune.estimation.request import EstimateReport, EstimateRequest
from autotune.keywords import EstimateKeywords, RunKeywords, shows
from autotune.models.callable import importable
from autotune.notebook import html_table
from autotune.options import RunOptions
from autotune.reporting.reported import Reported
from autotune.run.best import Best
from autotune.run.callbacks import RunCallbacks
from autotune.run.folder import find_run, load_spec, new_run
from autotune.run.journal import read_record
from autotune.run.paths import RunPaths
from autotune.run.record import Record
from autotune.specs import RunSpec
from autotune.units import format_bytes, format_counted

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Run:
    """A run as its folder holds it."""

    paths: RunPaths
    """Its files."""
    spec: RunSpec
    """What was asked for."""
    record: Record
    """What happened: `record.history` holds the trials."""

    @property
    def best(self) -> Best | None:
        """The proven winner, or None where there is none (yet)."""
        if self.record.decided is None or self.record.decided.winner is None:
            return None
        return Best.read(self.paths.best)

    @property
    def trials(self) -> pandas.DataFrame:
        """All probes as a DataFrame, a row each: configuration, verdict, memory and speed, measured beside predicted.

        `autotune.reporting.trial_rows.COLUMNS` names the columns: bytes, seconds, tokens per second; what is not known
        is `<NA>`.
        """
        import pandas

        from autotune.reporting.trial_rows import COLUMNS, trial_rows

        rows = trial_rows(self._reported)
        return pandas.DataFrame(rows, columns=list(COLUMNS)).convert_dtypes()

    def __repr__(self) -> str:
        """Return a line: all that its files say would be pages."""
        decided = self.record.decided
        if decided is None:
            state = "not finished"
        else:
            state = "no winner" if decided.winner is None else f"won by probe {decided.winner}"
        probes = format_counted(len(self.record.history), "probe")
        return f"<Run {self.paths.root}: {self.spec.model.name} on {self.spec.device}, {probes}, {state}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows of it: the winner, or how far it is, and all trials."""
        from autotune.reporting.trial_rows import trial_rows

        spec, best = self.spec, self.best
        title = f"{spec.model.name} on {spec.device}, {spec.goal.target} a step ({self.paths.root})"
        if best is not None:
            winner = best._repr_html_()
        else:
            decided = self.record.decided
            winner = html_table((), [("no winner", decided.why if decided else "not finished")])
        rows = [
            (
                str(row["number"]), row["title"], f"{row['micro_batch']:,}", row["verdict"],
                "-" if row["peak"] is None else format_bytes(row["peak"]),
                "-" if row["predicted_peak"] is None else format_bytes(row["predicted_peak"]),
                _speed(row), row["why_not"] or "",
            )
            for row in trial_rows(self._reported)
        ]  # fmt: skip
        head = (
            "#",
            "configuration",
            "micro-batch",
            "verdict",
            "peak",
            "predicted",
            "tokens/s",
            "why not the winner",
        )
        return winner + html_table(head, rows, title)

    @property
    def _reported(self) -> Reported:
        return Reported.of(self.paths, self.spec, self.record)


def _speed(row: Mapping[str, Any]) -> str:
    if row["tokens_per_second"] is not None:
        return f"{row['tokens_per_second']:,.0f} ± {row['half_width']:,.0f}"
    return "-" if row["at_most"] is None else f"≤ {row['at_most']:,.0f}"


@shows(RunKeywords, RunOptions)
def tune(
    *, runs: str | Path = "runs", callbacks: RunCallbacks | None = None, **options: Unpack[RunKeywords]
) -> Best:
    """Find, prove and emit the fastest configuration that fits; return what `best.yaml` says.

    The keywords are the options of `autotune run` (`autotune run --help` describes them); None leaves one at its
    default. Times are seconds or text such as "10m", the global batch is tokens or text such as "512 samples". A model
    may be a function at the top level of a file: workers import it, so a script that passes one of its own calls
    `tune` under `if __name__ == "__main__":`. `runs` is the folder that gets the run's;
    `callbacks` are told of every event (a subclass of `RunCallbacks`).

    Raises InputError with every mistake, NothingFits, NothingTrained, NothingProven, ModelError with the model's own
    traceback, or another AutotuneError where this machine fails. What was recorded stays: `load_run("last")`.
    """
    from autotune.devices.find import check_device
    from autotune.executors.session import executing
    from autotune.run.loop import tune as loop
    from autotune.run.spec import to_spec

    given = _given(options)
    base = _name_model(given)
    spec = to_spec(RunOptions.load(given, "options"), check_device, base)
    with new_run(spec, Path(runs)) as paths, executing(spec, paths.root) as (executor, tracer):
        return loop(spec, paths, executor, callbacks, tracer)


@shows(EstimateKeywords, EstimateRequest)
def estimate(**options: Unpack[EstimateKeywords]) -> EstimateReport:
    """Predict memory and speed on a GPU that need not be there; nothing is trained.

    `candidate` holds the axes of one configuration (`{"checkpointing": "full"}`); without it every rung of the search
    space is estimated. The other keywords are the options of `autotune estimate`, and None leaves one at its default.
    Of what is returned, `priced` holds an `estimate` for each rung (bytes, tokens per second, the largest micro-batch),
    and `unpriced` what cannot be traced, with the reason. Raises InputError with every mistake, or ProbeError.
    """
    from autotune.estimation.request import estimate as answer_to
    from autotune.tracing.client import LocalTracer

    given = _given(options)
    base = _name_model(given)
    return answer_to(EstimateRequest.gather(given, base), LocalTracer(), base)


def load_run(name: str | Path = "last", runs: str | Path = "runs") -> Run:
    """Return a run by its folder, by its name under `runs`, or the newest there for `last`.

    It may be under way: then `record` is as far as it came. Raises InputError where there is none, JournalError where
    its record is damaged.
    """
    paths = find_run(str(name), Path(runs))
    return Run(paths, load_spec(paths), read_record(paths.journal))


def load_results(
    results: str | Path = "results", sweep: str | None = None, since: str | None = None
) -> pandas.DataFrame:
    """Return all trials of all nights as a DataFrame: a row for each probe, rematch and proof.

    `results` is where sweeps keep them: a folder, or `postgresql://...`. `sweep` and `since` (a day such as 20261122)
    narrow it down. Columns are those of `autotune results query`: bytes, seconds, tokens per second, every axis of the
    candidate, and `step_seconds`, the recorded steps. Raises InputError where there are no results, or StoreError.
    """
    from autotune.results.find import open_store
    from autotune.results.frame import frame
    from autotune.results.store import Query

    query = Query.load({"sweep": [] if sweep is None else [sweep], "since": since}, "load_results")
    with open_store(results, create=False) as store:
        return frame(store.query(query))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords that were given, as the files of options know them: paths are text there."""
    given = {name: value for name, value in options.items() if value is not None}
    return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}


def _name_model(given: dict[str, Any]) -> Path:
    """Replace a model that is a function by its name; return the folder in which names and paths are looked for.

    Raises InputError where a worker runs this: it imports the file of its model, which calls for another run.
    """
    from autotune.probe.launch import MARK

    if MARK in os.environ:
        raise InputError(
            "the file of the model calls autotune while a worker imports it; put the call under "
            '`if __name__ == "__main__":`'
        )
    model = given.get("model")
    if not callable(model):
        return Path.cwd()
    given["model"], base = importable(model)
    if "lengths" in given:
        given["lengths"] = str(Path(given["lengths"]).expanduser().absolute())
    return base
