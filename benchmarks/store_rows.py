"""Nights of results made up for `benchmarks/results_store.py`: rows as runs leave them, and copies that SQL makes."""

from __future__ import annotations

import random

from autotune.candidate import Candidate
from autotune.outcome import Oom
from autotune.results.postgresql import PostgresqlStore
from autotune.results.row import CellRow, Environment, RunRows, TrialRow
from autotune.results.sql import SqlStore
from autotune.results.tables import TRIAL
from autotune.testing.arithmetic import ok
from autotune.units import GIB, MIB

TRIALS = 20
HERE = Environment(device_kind="cpu", hardware="made up", evidence="measured", packages={"torch": "2.13.0"})


def night_name(number: int) -> str:
    return f"2026{1 + number // 28:02}{1 + number % 28:02}T000000Z"


def rows_of(cell: str, night: int, trials: int = TRIALS, rng: random.Random | None = None) -> RunRows:
    """Return the rows of one cell: micro-batches that fit, the rest out of memory."""
    shift = 1 + (rng.gauss(0, 0.005) if rng else 0.0)
    made = []
    for number in range(1, trials + 1):
        candidate = Candidate(micro_batch=number)
        fits = number <= trials * 3 // 4
        outcome = (
            ok(number * 40 * MIB, 0.1 * shift, 0.01, GIB) if fits else Oom(phase="forward", requested=GIB)
        )
        steps = tuple(0.1 * shift * (1 + 0.001 * step) for step in range(20))
        made.append(
            TrialRow(
                kind="proof" if number == trials // 2 else "probe", number=number, turn=int(number == trials // 2),
                time=f"2026-01-01T00:{number:02}:00+00:00", environment=HERE, candidate=candidate,
                outcome=outcome.model_copy(update={"step_seconds": steps}) if fits else outcome, seconds=10.0,
                key=f"{cell}-{number}", budget=GIB, fits=fits,
                **({"global_step": 0.5, "tokens_per_second": 1000.0 / shift, "interval": 5.0} if fits else {}),
            )
        )  # fmt: skip
    row = CellRow(
        sweep="nightly", night=night_name(night), cell=cell, run=f"cells/{cell}", state="proven", asked=cell,
        model="gpt2", lines=100, environment=HERE, budget=GIB, winner=Candidate(micro_batch=trials // 2),
        tokens_per_second=1000.0 / shift, interval=5.0, drift=0.005, global_step=0.5, step_seconds=(0.1,) * 20,
        peak=trials // 2 * 40 * MIB, trials=trials,
    )  # fmt: skip
    return RunRows(cell=row, trials=tuple(made))


def fill(store: SqlStore, cells: int, nights: int) -> None:
    """Add the first night as runs are added, and the others as copies of it.

    PostgreSQL counts what is there as it does by itself within a minute (autovacuum): no table grows so fast in use.
    """
    rng = random.Random(0)
    for start in range(0, cells, 100):
        names = range(start, min(cells, start + 100))
        store.add(rows_of(f"cell{name:05}", 0, rng=rng) for name in names)
    columns = [name for name in columns_of_cells(store) if name not in {"id", "night", "tokens_per_second"}]
    listed = ", ".join(columns)
    trial = ", ".join(f"t.{name}" for name in TRIAL[1:] if name != "peak")
    rest = ", ".join(name for name in TRIAL[1:] if name != "peak")
    for night in range(1, nights):
        with store.transaction() as connection:
            # A few thousandths more or less, the same in both databases.
            jitter = f"(1 + ((id * 7919 + {night * 104729}) % 101 - 50) / 10000.0)"
            store.execute(
                connection,
                f"INSERT INTO cells (night, tokens_per_second, {listed}) "
                f"SELECT ?, tokens_per_second * {jitter}, {listed} FROM cells WHERE night = ?",
                (night_name(night), night_name(0)),
            )
            copied = (
                "FROM cells AS n JOIN cells AS f ON f.sweep = n.sweep AND f.cell = n.cell AND f.night = ?"
            )
            store.execute(
                connection,
                f"INSERT INTO trials (cell_id, peak, {rest}) SELECT n.id, t.peak + (n.id + t.number) % 1000, {trial} "
                f"{copied} JOIN trials AS t ON t.cell_id = f.id WHERE n.night = ?",
                (night_name(0), night_name(night)),
            )
            store.execute(
                connection,
                "INSERT INTO outcomes SELECT n.id, o.kind, o.number, o.turn, o.step_seconds, o.outcome "
                f"{copied} JOIN outcomes AS o ON o.cell_id = f.id WHERE n.night = ?",
                (night_name(0), night_name(night)),
            )
    if isinstance(store, PostgresqlStore):
        with store.reading() as connection:
            store.execute(connection, "ANALYZE")


def columns_of_cells(store: SqlStore) -> list[str]:
    with store.reading() as connection:
        cursor = store.execute(connection, "SELECT * FROM cells LIMIT 1")
        return [column[0] for column in cursor.description]
