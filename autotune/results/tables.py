"""The tables of a store, in the SQL that SQLite and PostgreSQL have in common, and rows as they hold them. Pure."""

from __future__ import annotations

import json
from typing import Any

from autotune.candidate import AXES, Candidate
from autotune.outcome import Ok, Outcome
from autotune.printable import printable
from autotune.results.row import CellRow, Environment, TrialRow, digest
from autotune.techniques.families import title as title_of

CELL = (
    "sweep", "night", "cell", "run", "state", "reason", "asked", "model", "model_digest", "target_tokens", "seq_len",
    "gpus", "nodes", "lines", "time", "seconds", "trials", "environment", "budget", "winner", "alternatives",
    "tokens_per_second", "half_width", "drift", "proofs", "global_step", "step_seconds", "peak",
)  # fmt: skip
"""Columns of a cell, in the order in which `cell_values` gives them."""
TRIAL = (
    "cell_id", "kind", "number", "turn", "time", "environment", "candidate", "reuse_key", "outcome", "phase", "reason",
    "budget", "allocated", "reserved", "device_peak", "peak", "fits", "passed", "global_step", "tokens_per_second",
    "half_width", "seconds", "reused",
)  # fmt: skip
"""Columns of a trial, in the order in which `trial_values` gives them."""

TABLES = """
CREATE TABLE IF NOT EXISTS meta (name {text} PRIMARY KEY, value {text} NOT NULL);
CREATE TABLE IF NOT EXISTS environments (
    digest {text} PRIMARY KEY, device_kind {text} NOT NULL, hardware {text} NOT NULL, driver {text},
    facts {text} NOT NULL
);
CREATE TABLE IF NOT EXISTS candidates (
    digest {text} PRIMARY KEY, title {text} NOT NULL, axes {text} NOT NULL
);
CREATE TABLE IF NOT EXISTS cells (
    id {id}, sweep {text} NOT NULL, night {text} NOT NULL, cell {text} NOT NULL, run {text} NOT NULL,
    state {text} NOT NULL, reason {text} NOT NULL, asked {text} NOT NULL, model {text} NOT NULL,
    model_digest {text} NOT NULL, target_tokens BIGINT, seq_len BIGINT, gpus BIGINT NOT NULL, nodes BIGINT NOT NULL,
    lines BIGINT NOT NULL, time {text} NOT NULL, seconds {real} NOT NULL, trials BIGINT NOT NULL, environment {text},
    budget BIGINT, winner {text}, alternatives {text} NOT NULL, tokens_per_second {real}, half_width {real},
    drift {real}, proofs {text} NOT NULL, global_step {real}, step_seconds {text} NOT NULL, peak BIGINT,
    good INTEGER, regressions {text} NOT NULL DEFAULT '[]',
    UNIQUE (sweep, night, cell)
);
CREATE INDEX IF NOT EXISTS cells_by_age ON cells (sweep, cell, night);
CREATE TABLE IF NOT EXISTS trials (
    cell_id BIGINT NOT NULL REFERENCES cells (id), kind {text} NOT NULL, number BIGINT NOT NULL, turn BIGINT NOT NULL,
    time {text} NOT NULL, environment {text} NOT NULL, candidate {text} NOT NULL, reuse_key {text} NOT NULL,
    outcome {text} NOT NULL, phase {text}, reason {text} NOT NULL, budget BIGINT NOT NULL, allocated BIGINT,
    reserved BIGINT, device_peak BIGINT, peak BIGINT, fits INTEGER, passed INTEGER, global_step {real},
    tokens_per_second {real}, half_width {real}, seconds {real} NOT NULL, reused {text} NOT NULL,
    PRIMARY KEY (cell_id, kind, number, turn)
){clustered};
CREATE INDEX IF NOT EXISTS trials_by_key ON trials (reuse_key, time);
CREATE TABLE IF NOT EXISTS outcomes (
    cell_id BIGINT NOT NULL REFERENCES cells (id), kind {text} NOT NULL, number BIGINT NOT NULL, turn BIGINT NOT NULL,
    step_seconds {text} NOT NULL, outcome {text} NOT NULL,
    PRIMARY KEY (cell_id, kind, number, turn)
){clustered}
"""
"""Candidates and environments are kept once each. Whole outcomes lie apart from what queries filter and compare."""


def statements(**types: str) -> list[str]:
    """Return the statements that make the tables, with a database's own names of types."""
    return [one.strip() for one in TABLES.format(**types).split(";")]


def candidate_digest(candidate: Candidate) -> str:
    """Return what stands for a candidate in other tables."""
    return digest(candidate.key())


def candidate_values(candidate: Candidate) -> tuple[str, str, str]:
    """Return a row of `candidates`."""
    title = f"{title_of(candidate)}, micro-batch {candidate.micro_batch}"
    return candidate_digest(candidate), title, json.dumps(candidate.model_dump(mode="json"))


def environment_values(environment: Environment) -> tuple[str, str, str, str | None, str]:
    """Return a row of `environments`."""
    return (
        environment.digest(), environment.device_kind, printable(environment.hardware), environment.driver,
        json.dumps(environment.model_dump(mode="json")),
    )  # fmt: skip


def cell_values(row: CellRow) -> tuple[Any, ...]:
    """Return a row of `cells`, in the order of CELL."""
    winner = None if row.winner is None else candidate_digest(row.winner)
    environment = None if row.environment is None else row.environment.digest()
    return (
        row.sweep, row.night, row.cell, row.run, row.state, printable(row.reason), row.asked, row.model,
        row.model_digest,
        row.target_tokens, row.seq_len, row.gpus, row.nodes, row.lines, row.time, row.seconds, row.trials,
        environment,
        row.budget, winner, json.dumps([candidate_digest(one) for one in row.alternatives]), row.tokens_per_second,
        row.interval, row.drift, json.dumps(row.proofs), row.global_step, json.dumps(row.step_seconds), row.peak,
    )  # fmt: skip


def trial_values(row: TrialRow) -> tuple[Any, ...]:
    """Return a row of `trials` in the order of TRIAL, without its `cell_id`."""
    memory = row.outcome.memory if isinstance(row.outcome, Ok) else None
    sizes = (
        (None, None, None, None)
        if memory is None
        else (memory.allocated, memory.reserved, memory.device_peak, memory.peak())
    )
    return (
        row.kind, row.number, row.turn, row.time, row.environment.digest(), candidate_digest(row.candidate), row.key,
        row.outcome.kind, getattr(row.outcome, "phase", None), _reason(row.outcome), row.budget, *sizes,
        _flag(row.fits), _flag(row.passed), row.global_step, row.tokens_per_second, row.interval, row.seconds,
        row.reused,
    )  # fmt: skip


def outcome_values(row: TrialRow) -> tuple[Any, ...]:
    """Return a row of `outcomes`, without its `cell_id`."""
    steps = row.outcome.step_seconds if isinstance(row.outcome, Ok) else ()
    return row.kind, row.number, row.turn, json.dumps(steps), row.outcome.model_dump_json()


def flat(values: dict[str, Any], axes: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Return a trial for people and pandas: its columns, its environment, each axis a key of its own."""
    packages = facts["packages"]
    return {
        **values,
        "fits": None if values["fits"] is None else bool(values["fits"]),
        "passed": None if values["passed"] is None else bool(values["passed"]),
        "evidence": facts["evidence"], "torch": packages.get("torch"), "transformers": packages.get("transformers"),
        **{name: axes[name] for name in ("micro_batch", *AXES)},
        "checkpointed_blocks": str(axes["checkpointed_blocks"]),  # of one type in a column: "all", or a number
    }  # fmt: skip


def _reason(outcome: Outcome) -> str:
    return printable(getattr(outcome, "message", "") or getattr(outcome, "reason", ""))


def _flag(value: bool | None) -> int | None:
    return None if value is None else int(value)
