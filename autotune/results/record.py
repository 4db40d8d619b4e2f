"""The rows of an ordinary run, read from its folder. A pure function of spec, journal and best.yaml."""

from __future__ import annotations

import math
import os

from autotune.confidence import t_quantile
from autotune.outcome import Drift, Ok, Oom
from autotune.results.reuse_key import asked_digest, environment_of, model_digest, reuse_key
from autotune.results.row import CellRow, CellState, Environment, RunRows, TrialKind, TrialRow
from autotune.run.best import Best
from autotune.run.events import Decided, Interrupted, Opened, ProofStarted, RematchStarted, Started
from autotune.run.folder import load_spec
from autotune.run.journal import read_record
from autotune.run.paths import RunPaths
from autotune.run.record import Record
from autotune.search.context import SearchContext
from autotune.search.drift import PRIOR_WEIGHT
from autotune.search.selection import throughput
from autotune.site import Site
from autotune.specs import RunSpec
from autotune.trial import ProofFinished, RematchFinished, Trial

_Timed = Opened | Started | Interrupted | RematchStarted | ProofStarted | Decided


def record_run(
    paths: RunPaths,
    sweep: str,
    night: str,
    cell: str,
    state: CellState | None = None,
    reason: str = "",
    spec: RunSpec | None = None,
    best: Best | None = None,
) -> RunRows:
    """Return the rows of a cell's run, as far as its journal goes.

    `state` says how it ended where the journal does not: a model that fails, a machine that does; without one a run
    that is not decided is `interrupted`. `spec` and `best` are what the folder's files hold, where that is known: to
    read them takes longer than all else. Raises InputError where the folder holds no run, JournalError where it is
    damaged.
    """
    spec = spec or load_spec(paths)
    record = read_record(paths.journal) if os.path.exists(paths.journal) else Record.of(())
    reader = _Reader(paths, spec, record, sweep, night, cell)
    reader.best = best
    return RunRows(cell=reader.cell_row(state, reason), trials=reader.trials())


class _Reader:
    def __init__(
        self, paths: RunPaths, spec: RunSpec, record: Record, sweep: str, night: str, cell: str
    ) -> None:
        self.paths, self.spec, self.record = paths, spec, record
        self.names = {"sweep": sweep, "night": night, "cell": cell, "run": str(paths.root)}
        self.budget = None if record.inspection is None else record.inspection.budget
        inspected = record.inspection
        self.best: Best | None = None
        """What best.yaml holds, where that is known before it is read."""
        self.context = (
            None
            if inspected is None
            else SearchContext.of(spec, inspected.facts, inspected.budget, record.opened_at)
        )
        self.sites: dict[int, Site] = {}
        """Where each probe was launched from, by number: its own place, else that of the start before it."""
        self.times: dict[int, str] = {}
        opened: Site | None = None
        for entry in record.entries:
            if isinstance(entry, Opened):
                opened = entry.site
            elif isinstance(entry, Started):
                self.times[entry.number] = entry.time
                if opened is not None:
                    self.sites[entry.number] = opened

    def trials(self) -> tuple[TrialRow, ...]:
        rows = []
        for trial in self.record.history:
            finished = self.record.finished(trial.number)
            assert finished is not None, "a trial has its verdict"
            row = self.row(trial, "probe", site=finished.site)
            rows.append(row.model_copy(update={"reused": finished.reused}) if finished.reused else row)
        by_number = {trial.number: trial for trial in self.record.history}
        for rematch in self.record.rematches:
            again = by_number[rematch.number].model_copy(
                update={"outcome": rematch.outcome, "seconds": rematch.seconds}
            )
            rows.append(self.row(again, "rematch", rematch.round, rematch.site))
        turns: dict[int, int] = {}
        for proof in self.record.proofs:
            turn = turns[proof.number] = turns.get(proof.number, 0) + 1
            again = by_number[proof.number].model_copy(
                update={"outcome": proof.outcome, "seconds": proof.seconds}
            )
            rows.append(self.row(again, "proof", turn, proof.site, proof.passed))
        return tuple(rows)

    def row(
        self,
        trial: Trial,
        kind: TrialKind,
        turn: int = 0,
        site: Site | None = None,
        passed: bool | None = None,
    ) -> TrialRow:
        """Return the row of one measurement; `trial` has its outcome and seconds."""
        assert self.context is not None, "no trial before the model is known"
        site = site or self.sites[trial.number]
        environment, goal, candidate = environment_of(site), self.spec.goal, trial.candidate
        batches = self.context.batches(candidate)
        steps, speed = batches.steps(candidate.micro_batch), {}
        if isinstance(trial.outcome, Ok) and trial.outcome.timing is not None:
            accumulation = batches.accumulation(candidate.micro_batch)
            seconds, tokens, interval = throughput(trial.outcome.timing, accumulation)
            speed = {"global_step": seconds, "tokens_per_second": tokens, "interval": interval}
        fits = self.context.fits(trial.outcome.memory) if isinstance(trial.outcome, Ok) else None
        return TrialRow(
            kind=kind, number=trial.number, turn=turn, time=self.times[trial.number], environment=environment,
            candidate=candidate, outcome=trial.outcome, seconds=trial.seconds, passed=passed,
            fits=False if isinstance(trial.outcome, Oom) else fits, budget=self.context.budget,
            key=reuse_key(self.spec.model, candidate, goal, steps, environment), **speed,
        )  # fmt: skip

    def cell_row(self, state: CellState | None, reason: str) -> CellRow:
        """Return the row of the cell."""
        record = self.record
        decided = record.decided
        won = decided is not None and decided.winner is not None
        best = (self.best or Best.read(self.paths.best)) if won else None
        if best is not None:
            state, reason = "proven", ""
        elif decided is not None:
            state, reason = state or self.without_winner(), reason or decided.why
        spent: tuple[Trial | RematchFinished | ProofFinished, ...] = (
            *record.history, *record.rematches, *record.proofs,
        )  # fmt: skip
        row = CellRow(
            **self.names, state=state or "interrupted", reason=reason, asked=asked_digest(self.spec),
            model=self.spec.model.name, model_digest=model_digest(self.spec.model),
            target_tokens=None if self.context is None else self.context.target, seq_len=self.spec.goal.seq_len,
            gpus=self.spec.goal.gpus, nodes=self.spec.goal.nodes, lines=len(record.entries),
            time=next((entry.time for entry in reversed(record.entries) if isinstance(entry, _Timed)), ""),
            seconds=math.fsum(one.seconds for one in spent), trials=len(record.history),
            environment=self.environment(None), budget=self.budget,
        )  # fmt: skip
        if best is None or decided is None or decided.winner is None:
            return row
        proofs = [
            proof.outcome
            for proof in record.proofs
            if proof.number == decided.winner and isinstance(proof.outcome, Ok)
        ]
        trial = record.trial(decided.winner)
        measured = proofs[-1] if proofs else trial.outcome if trial is not None else None
        assert isinstance(measured, Ok)
        return row.model_copy(
            update={
                "environment": self.environment(decided.winner), "winner": best.candidate,
                "alternatives": tuple(one.candidate for one in best.alternatives),
                "tokens_per_second": best.tokens_per_second, "interval": best.tokens_per_second_interval,
                "drift": None if best.drift is None else deviation(best.drift),
                "proofs": tuple(
                    one.tokens_per_second
                    for one in self.trials()
                    if one.kind == "proof" and one.number == decided.winner and one.tokens_per_second is not None
                ),
                "global_step": best.seconds_per_global_step, "step_seconds": measured.step_seconds,
                "peak": best.peak(),
            }
        )  # fmt: skip

    def environment(self, winner: int | None) -> Environment | None:
        site = (None if winner is None else self.record.site(winner)) or self.record.opened_at
        return None if site is None else environment_of(site)

    def without_winner(self) -> CellState:
        """Return why a run that is decided has no winner."""
        outcomes = [trial.outcome for trial in self.record.history]
        if self.record.proofs:
            return "nothing_proven"
        if any(isinstance(outcome, Ok | Oom) for outcome in outcomes):
            return "nothing_fits"
        return "nothing_trained"


def deviation(drift: Drift) -> float:
    """Return the standard deviation of one measurement that a run's drift tells of, as a share.

    `search.drift` states it as the half-width of a 95% interval by Student's t with so many degrees of freedom.
    """
    return drift.share / t_quantile(PRIOR_WEIGHT + drift.halves + drift.repeats)
