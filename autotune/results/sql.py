"""A store behind SQL: what is asked of SQLite and PostgreSQL alike. Statements mark values by `?`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import TypeAdapter

from autotune.candidate import Candidate
from autotune.outcome import Outcome
from autotune.results.database import Database
from autotune.results.row import CellRow, CellState, Environment, RunRows
from autotune.results.store import Fit, Known, Origin, Query, Verdict
from autotune.results.tables import (
    CELL,
    TRIAL,
    candidate_values,
    cell_values,
    environment_values,
    flat,
    outcome_values,
    trial_values,
)

_OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)
BATCH = 500
"""Values of one statement's list, at most."""

_UPSERT_CELL = f"""
INSERT INTO cells ({", ".join(CELL)}) VALUES ({", ".join("?" * len(CELL))})
ON CONFLICT (sweep, night, cell) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in CELL[3:])},
    good = CASE WHEN excluded.lines > cells.lines THEN NULL ELSE cells.good END,
    regressions = CASE WHEN excluded.lines > cells.lines THEN '[]' ELSE cells.regressions END
WHERE excluded.lines >= cells.lines
RETURNING id
"""
_GOOD = """
SELECT {columns} FROM (
    SELECT past.*, row_number() OVER (PARTITION BY past.cell ORDER BY past.night DESC) AS place
    FROM cells AS tonight JOIN cells AS past
        ON past.sweep = tonight.sweep AND past.cell = tonight.cell AND past.asked = tonight.asked
    WHERE tonight.sweep = ? AND tonight.night = ? AND past.night < tonight.night AND past.night >= ?
        AND past.state = 'proven' AND coalesce(past.good, 1) = 1
) AS ranked WHERE place <= ? ORDER BY cell, night
"""
_PAST = f"""
SELECT {", ".join(CELL)} FROM cells
WHERE sweep = ? AND cell = ? AND asked = ? AND night < ? AND night >= ? AND state = 'proven' AND coalesce(good, 1) = 1
ORDER BY night DESC LIMIT ?
"""
_FITS = """
SELECT c.night, c.cell, t.candidate, t.kind = 'proof' AS proof,
    max(CASE WHEN t.outcome = 'oom' THEN 1 ELSE 0 END) AS oom, max(t.peak) AS peak
FROM cells AS c JOIN trials AS t ON t.cell_id = c.id
WHERE c.sweep = ? AND c.night IN ({nights}) AND t.outcome IN ('ok', 'oom') AND t.reused = ''
GROUP BY c.cell, c.night, t.candidate, t.kind = 'proof' ORDER BY c.cell, c.night, t.candidate, t.kind = 'proof'
"""
_TRIALS = f"""
SELECT c.sweep, c.night, c.cell, c.run, c.model, c.model_digest, c.target_tokens, c.seq_len, c.gpus, c.nodes,
    e.device_kind, e.hardware, e.driver, {", ".join(f"t.{name}" for name in TRIAL[1:])}, d.title, o.step_seconds
FROM cells AS c JOIN trials AS t ON t.cell_id = c.id JOIN environments AS e ON e.digest = t.environment
    JOIN candidates AS d ON d.digest = t.candidate
    JOIN outcomes AS o ON o.cell_id = t.cell_id AND o.kind = t.kind AND o.number = t.number AND o.turn = t.turn
"""


class SqlStore(Database):
    """The store, but for how its database connects."""

    def add(self, rows: RunRows | Iterable[RunRows]) -> None:
        """Keep the rows of one or several cells, in one transaction."""
        runs = [rows] if isinstance(rows, RunRows) else list(rows)
        environments: dict[str, Environment] = {}
        candidates: dict[str, Candidate] = {}
        for run in runs:
            for trial in run.trials:
                environments[trial.environment.digest()] = trial.environment
                candidates[trial.candidate.key()] = trial.candidate
            if run.cell.environment is not None:
                environments[run.cell.environment.digest()] = run.cell.environment
            named = (*run.cell.alternatives, *([run.cell.winner] if run.cell.winner else []))
            candidates |= {one.key(): one for one in named}
        with self.transaction() as connection:
            # Sorted: two writers that lock the same rows in another order would wait for each other.
            self.execute_many(
                connection, "INSERT INTO environments VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (environment_values(environments[key]) for key in sorted(environments)),
            )  # fmt: skip
            self.execute_many(
                connection, "INSERT INTO candidates VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                sorted(map(candidate_values, candidates.values())),
            )  # fmt: skip
            newest: dict[int, RunRows] = {}
            for run in sorted(runs, key=lambda one: (one.cell.sweep, one.cell.night, one.cell.cell)):
                kept = self.execute(connection, _UPSERT_CELL, cell_values(run.cell)).fetchone()
                if kept is not None:  # else a longer journal of the same cell was there before
                    newest[kept[0]] = run
            for table in ("outcomes", "trials"):
                self.execute_many(
                    connection, f"DELETE FROM {table} WHERE cell_id = ?", ((one,) for one in newest)
                )
            trials = [(key, *trial_values(one)) for key, run in newest.items() for one in run.trials]
            outcomes = [(key, *outcome_values(one)) for key, run in newest.items() for one in run.trials]
            marks = ", ".join("?" * len(TRIAL))
            self.execute_many(connection, f"INSERT INTO trials ({', '.join(TRIAL)}) VALUES ({marks})", trials)
            self.execute_many(connection, "INSERT INTO outcomes VALUES (?, ?, ?, ?, ?, ?)", outcomes)

    def sweeps(self) -> tuple[str, ...]:
        """Return the names of all sweeps, sorted."""
        return tuple(row[0] for row in self.found("SELECT DISTINCT sweep FROM cells ORDER BY sweep"))

    def nights(self, sweep: str) -> tuple[str, ...]:
        """Return the nights of a sweep, the oldest first."""
        rows = self.found("SELECT DISTINCT night FROM cells WHERE sweep = ? ORDER BY night", (sweep,))
        return tuple(row[0] for row in rows)

    def cells(
        self, sweep: str, nights: Sequence[str] = (), states: Sequence[CellState] = ()
    ) -> tuple[CellRow, ...]:
        """Return the cells of some nights (of all, where none is named), by night and cell."""
        filters, values = _filters([("sweep", (sweep,)), ("night", nights), ("state", states)])
        rows = self.found(f"SELECT {', '.join(CELL)} FROM cells{filters} ORDER BY night, cell", values)
        return self._cell_rows(rows)

    def good(self, sweep: str, night: str, last: int, since: str = "") -> tuple[CellRow, ...]:
        """Return, of each cell of a night, the last good nights before it that asked for the same."""
        rows = self.found(_GOOD.format(columns=", ".join(CELL)), (sweep, night, since, last))
        return self._cell_rows(rows)

    def past(self, tonight: CellRow, last: int, since: str = "") -> tuple[CellRow, ...]:
        """Return what `good` does for one cell that need not be there yet: the last good nights, the oldest first."""
        of = (tonight.sweep, tonight.cell, tonight.asked, tonight.night, since, last)
        return self._cell_rows(self.found(_PAST, of)[::-1])

    def speeds(self, sweep: str, night: str, last: int, since: str = "") -> dict[str, tuple[float, ...]]:
        """Return the tokens per second of the nights that `good` returns, by cell, the oldest first."""
        columns = "cell, tokens_per_second, proofs"
        rows = self.found(_GOOD.format(columns=columns), (sweep, night, since, last))
        found: dict[str, list[float]] = {}
        for cell, speed, proofs in rows:
            found.setdefault(cell, []).append((json.loads(proofs) or [speed])[0])
        return {cell: tuple(speeds) for cell, speeds in found.items()}

    def fits(self, sweep: str, nights: Sequence[str]) -> Iterator[Fit]:
        """Yield what some nights say of the memory of their candidates, by cell and night."""
        if not nights:
            return
        statement = _FITS.format(nights=", ".join("?" * len(nights)))
        with self.reading() as connection:
            for night, cell, candidate, proof, oom, peak in self.stream(
                connection, statement, (sweep, *nights)
            ):
                yield Fit(night, cell, candidate, bool(proof), bool(oom), peak)

    def titles(self, candidates: Iterable[str]) -> dict[str, str]:
        """Return what people call candidates, by the digests of their keys."""
        return {key: title for key, (title, _) in self._candidates(candidates).items()}

    def judge(self, verdicts: Iterable[Verdict]) -> None:
        """Keep what comparisons came to, in the place of what was said of the same cells before."""
        with self.transaction() as connection:
            self.execute_many(
                connection, "UPDATE cells SET good = ?, regressions = ? WHERE sweep = ? AND night = ? AND cell = ?",
                ((int(v.good), v.regressions, v.sweep, v.night, v.cell) for v in verdicts),
            )  # fmt: skip

    def verdicts(self, sweep: str, night: str) -> tuple[Verdict, ...]:
        """Return what comparisons of a night's cells came to, by cell; those that were never compared are left out."""
        rows = self.found(
            """
            SELECT cell, good, regressions FROM cells WHERE sweep = ? AND night = ? AND good IS NOT NULL ORDER BY cell
            """,
            (sweep, night),
        )
        return tuple(
            Verdict(sweep=sweep, night=night, cell=cell, good=bool(good), regressions=regressions)
            for cell, good, regressions in rows
        )

    def find_trial(self, key: str, since: str) -> Known | None:
        """Return the newest probe of a key that was measured since a moment, and trained or ran out of memory."""
        rows = self.found(
            """
            SELECT c.night, c.run, t.number, t.time, t.budget, o.outcome
            FROM trials AS t JOIN cells AS c ON c.id = t.cell_id
                JOIN outcomes AS o
                    ON o.cell_id = t.cell_id AND o.kind = t.kind AND o.number = t.number AND o.turn = t.turn
            WHERE t.reuse_key = ? AND t.time >= ? AND t.kind = 'probe' AND t.outcome IN ('ok', 'oom') AND t.reused = ''
            ORDER BY t.time DESC, c.night DESC, c.cell, t.number LIMIT 1
            """,
            (key, since),
        )
        if not rows:
            return None
        night, run, number, time, budget, outcome = rows[0]
        return Known(
            night=night,
            run=run,
            number=number,
            time=time,
            budget=budget,
            outcome=_OUTCOME.validate_json(outcome),
        )

    def reusable(self, since: str) -> dict[Origin, int]:
        """Return how many different probes since a moment `find_trial` would return, by what they were measured for."""
        rows = self.found(
            """
            SELECT c.asked, c.model_digest, t.environment, count(DISTINCT t.reuse_key)
            FROM trials AS t JOIN cells AS c ON c.id = t.cell_id
            WHERE t.time >= ? AND t.kind = 'probe' AND t.outcome IN ('ok', 'oom') AND t.reused = ''
            GROUP BY c.asked, c.model_digest, t.environment
            """,
            (since,),
        )
        return {Origin(*origin): count for *origin, count in rows}

    def query(self, query: Query) -> Iterator[dict[str, Any]]:
        """Yield the trials that are asked for as flat rows, by night, sweep, cell, kind and number."""
        filters, values = _filters(
            [
                ("c.sweep", query.sweep), ("c.night", query.night), ("c.cell", query.cell), ("c.model", query.model),
                ("e.hardware", query.hardware), ("t.kind", query.kind), ("t.outcome", query.outcome),
            ],
            [("c.night >= ?", query.since)] if query.since else [],
        )  # fmt: skip
        order = "c.night DESC" if query.limit else "c.night"
        statement = f"{_TRIALS}{filters} ORDER BY {order}, c.sweep, c.cell, t.kind, t.number, t.turn"
        if query.limit is not None:
            statement, values = f"{statement} LIMIT ?", [*values, query.limit]
        axes = {key: json.loads(text) for key, text in self.found("SELECT digest, axes FROM candidates")}
        facts = {key: json.loads(text) for key, text in self.found("SELECT digest, facts FROM environments")}
        names = (
            "sweep", "night", "cell", "run", "model", "model_digest", "target_tokens", "seq_len", "gpus", "nodes",
            "device_kind", "hardware", "driver", *TRIAL[1:], "title", "step_seconds",
        )  # fmt: skip
        with self.reading() as connection:
            for row in self.stream(connection, statement, values):
                found = dict(zip(names, row, strict=True))
                found["step_seconds"] = tuple(json.loads(found["step_seconds"]))
                yield flat(found, axes[found["candidate"]], facts[found["environment"]])

    def count(self) -> int:
        """Return how many trials there are."""
        number: int = self.found("SELECT count(*) FROM trials")[0][0]
        return number

    def _candidates(self, digests: Iterable[str]) -> dict[str, tuple[str, Candidate]]:
        found: dict[str, tuple[str, Candidate]] = {}
        wanted = sorted(set(digests))
        for start in range(0, len(wanted), BATCH):
            part = wanted[start : start + BATCH]
            rows = self.found(
                f"SELECT digest, title, axes FROM candidates WHERE digest IN ({', '.join('?' * len(part))})",
                part,
            )
            found |= {key: (title, Candidate.model_validate_json(axes)) for key, title, axes in rows}
        return found

    def _cell_rows(self, rows: Sequence[tuple[Any, ...]]) -> tuple[CellRow, ...]:
        found = [dict(zip(CELL, row, strict=True)) for row in rows]
        for one in found:
            one["interval"] = one.pop("half_width")
            one["alternatives"] = json.loads(one["alternatives"])
            for name in ("proofs", "step_seconds"):
                one[name] = json.loads(one[name])
        known = self._candidates(
            key
            for one in found
            for key in (*one["alternatives"], *([one["winner"]] if one["winner"] else []))
        )
        used = {one["environment"] for one in found if one["environment"]}
        facts = {
            key: Environment.model_validate_json(text)
            for key, text in self.found("SELECT digest, facts FROM environments")
            if key in used
        }
        for one in found:
            one["winner"] = None if one["winner"] is None else known[one["winner"]][1]
            one["alternatives"] = tuple(known[key][1] for key in one["alternatives"])
            one["environment"] = None if one["environment"] is None else facts[one["environment"]]
        return tuple(CellRow.model_validate(one) for one in found)


def _filters(
    any_of: Iterable[tuple[str, Sequence[str]]], more: Iterable[tuple[str, str]] = ()
) -> tuple[str, list[Any]]:
    """Return a WHERE clause, and its values."""
    terms: list[str] = []
    values: list[Any] = []
    for column, allowed in any_of:
        if allowed:
            terms.append(f"{column} IN ({', '.join('?' * len(allowed))})")
            values += allowed
    for term, value in more:
        terms.append(term)
        values.append(value)
    return (f" WHERE {' AND '.join(terms)}" if terms else ""), values
