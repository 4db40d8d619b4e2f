"""The runs of a folder, one a line: when, which model, on what, in which state, and what won."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from rich.text import Text

from autotune import __version__
from autotune.errors import AutotuneError, InputError
from autotune.outcome import Ok
from autotune.reporting.columns import Column, FittingTable
from autotune.run.events import Opened
from autotune.run.folder import load_spec, require_journal, run_folders, spec_asked
from autotune.run.journal import read_record
from autotune.run.paths import RunPaths
from autotune.run.proof import in_running
from autotune.run.record import Record
from autotune.run.sealed_lines import OtherVersion, another_version, holder
from autotune.search.context import SearchContext
from autotune.search.selection import score
from autotune.specs import RunSpec
from autotune.techniques.families import title as title_of
from autotune.units import format_bytes, format_count
from autotune.user_files import user_path

State = Literal[
    "proven", "predicted", "replayed", "no winner", "running", "interrupted", "other version", "damaged"
]
"""`proven` has a winner whose proof held, `predicted` and `replayed` have one of a device that is not there. Of an
`other version` is what another autotune wrote and this one cannot read; `damaged` cannot be read by any."""
_STYLES: dict[State, str] = {
    "proven": "green", "predicted": "yellow", "replayed": "yellow", "no winner": "red", "running": "cyan",
    "interrupted": "yellow", "other version": "yellow", "damaged": "red",
}  # fmt: skip


@dataclass(frozen=True)
class Listed:
    """A run in short. What is not known of it is None, or empty."""

    name: str
    """Its folder's."""
    state: State
    why: str = ""
    """Why there is no winner, or why it cannot be read."""
    started: datetime | None = None
    """UTC."""
    model: str = ""
    device: str = ""
    probes: int = 0
    winner: str = ""
    """The winner's configuration, with its micro-batch."""
    tokens_per_second: float | None = None
    peak: int | None = None
    """Bytes."""

    @classmethod
    def read(cls, paths: RunPaths) -> Listed:
        """Read a run; one that cannot be read is of an `other version` or `damaged`."""
        try:
            return cls._read(paths)
        except OtherVersion as error:
            why = f"{another_version(error.version)} wrote it, and {__version__} cannot read it"
            return cls(name=paths.id, state="other version", why=why)
        except AutotuneError as error:
            return cls(name=paths.id, state="damaged", why=str(error).partition("\n")[0])

    @classmethod
    def _read(cls, paths: RunPaths) -> Listed:
        record = read_record(paths.journal) if paths.journal.exists() else Record.of(())
        require_journal(paths, record)
        # What was asked for is in the journal too, which is read in a hundredth of the time.
        asked = record.asked
        spec = load_spec(paths) if asked is None else spec_asked(asked, paths)
        opened = next((entry for entry in record.entries if isinstance(entry, Opened)), None)
        return cls(
            name=paths.id, state=_state(paths, record, spec),
            why=record.decided.why if record.decided is not None and record.decided.winner is None else "",
            started=None if opened is None else datetime.fromisoformat(opened.time),
            model=spec.model.name, device=str(spec.device), probes=len(record.history),
            **_winner(record, spec),
        )  # fmt: skip

    def data(self) -> dict[str, Any]:
        """Return it as plain data, for `--json`."""
        started = None if self.started is None else self.started.isoformat()
        return {**self.__dict__, "started": started}


def run_list(parent: Path, most: int | None = None) -> tuple[list[Listed], int]:
    """Return the newest runs of a folder, the newest first, and how many earlier ones there are.

    Raises InputError where there is no such folder.
    """
    parent = user_path(parent, "--runs")
    if not parent.is_dir():
        raise InputError(f"--runs: there is no folder {parent}", about="runs")
    folders = run_folders(parent)[::-1]
    shown = folders if most is None else folders[:most]
    return [Listed.read(RunPaths(folder)) for folder in shown], len(folders) - len(shown)


def run_table(runs: list[Listed]) -> FittingTable:
    """Return runs as a table, one a row."""
    return FittingTable([
        Column("run", [run.name for run in runs], least=24),
        Column("started (UTC)", [f"{run.started:%Y-%m-%d %H:%M}" if run.started else "-" for run in runs], leaves=2),
        Column("model", [run.model or "-" for run in runs], leaves=4, least=12),
        Column("device", [run.device or "-" for run in runs], leaves=3),
        Column("probes", [str(run.probes) for run in runs], leaves=5, justify="right"),
        Column("state", [Text(run.state, style=_STYLES[run.state]) for run in runs]),
        Column("winner", [run.winner or run.why or "-" for run in runs], least=18),
        Column("tokens/s", [_number(run.tokens_per_second) for run in runs], justify="right"),
        Column("peak", [_peak(run) for run in runs], leaves=1, justify="right"),
    ])  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else format_count(value)


def _peak(run: Listed) -> str:
    return "-" if run.peak is None else format_bytes(run.peak)


def _state(paths: RunPaths, record: Record, spec: RunSpec) -> State:
    if record.decided is not None and record.decided.winner is not None:
        evidence = spec.device.evidence
        return "proven" if evidence == "measured" else evidence
    if record.decided is not None:
        return "no winner"
    return "running" if holder(paths.lock) is not None else "interrupted"


def _winner(record: Record, spec: RunSpec) -> dict[str, Any]:
    """Return what won, as fields of `Listed`; nothing without a winner."""
    decided, inspection = record.decided, record.inspection
    if decided is None or decided.winner is None or inspection is None:
        return {}
    context = SearchContext.of(spec, inspection.facts, inspection.budget)
    running = in_running(record.history, record.rematches, record.proofs)
    trial = next((one for one in running if one.number == decided.winner), None)
    if trial is None or not isinstance(trial.outcome, Ok) or trial.outcome.timing is None:
        return {}
    candidate = trial.candidate
    return {
        "winner": f"{title_of(candidate)}, micro-batch {format_count(candidate.micro_batch)}",
        "tokens_per_second": score(trial, context).tokens_per_second, "peak": trial.outcome.memory.peak(),
    }  # fmt: skip
