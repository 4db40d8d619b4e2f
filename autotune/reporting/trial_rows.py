"""Every probe of a run as a flat row of plain values: for data frames, studies and other programs."""

from __future__ import annotations

from typing import Any

from autotune.candidate import AXES
from autotune.outcome import Ok
from autotune.reporting.reported import Reported
from autotune.reporting.why_not import reasons
from autotune.search.drift import drift_of
from autotune.search.incumbent import bound_of
from autotune.search.selection import score
from autotune.search.wording import verdict
from autotune.techniques.families import title as title_of

COLUMNS: tuple[str, ...] = (
    "number", "title", "micro_batch", "verdict", "outcome", "fits", "peak", "predicted_peak", "tokens_per_second",
    "half_width", "at_most", "global_step", "predicted_global_step", "seconds", "node", "why", "why_not", *AXES,
)  # fmt: skip
"""In their order. Bytes, seconds, tokens per second over all devices; `half_width` is of the 95% interval of the speed
as finals and proof left it, `at_most` a bound of the speed of what ended early."""


def trial_rows(run: Reported) -> list[dict[str, Any]]:
    """Return a row for each probe, in the order of their numbers; None where something is not known."""
    context, record = run.context, run.record
    if context is None:
        return []
    drift = drift_of(record.history, (*record.rematches, *record.proofs), context)
    finals, why = {trial.number: trial for trial in run.trials}, reasons(run)
    rows = []
    for trial in record.history:
        candidate, outcome = trial.candidate, trial.outcome
        batches, size = context.batches(candidate), candidate.micro_batch
        final = finals.get(trial.number, trial)
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row |= {
            "number": trial.number, "title": title_of(candidate), "micro_batch": size,
            "verdict": verdict(outcome, context), "outcome": outcome.kind, "seconds": trial.seconds,
            "node": trial.node, "why": trial.why, "why_not": why.get(trial.number, ""),
            **candidate.model_dump(mode="json", include=set(AXES)),
        }  # fmt: skip
        if trial.prediction is not None:
            row["predicted_peak"] = trial.prediction.peak
            if trial.prediction.timing is not None and batches.allows(size):
                row["predicted_global_step"] = trial.prediction.timing.global_step(batches.steps(size))
        if isinstance(outcome, Ok):
            row |= {"peak": outcome.memory.peak(), "fits": context.fits(outcome.memory)}
            if (bound := bound_of(final, context, drift)) is not None:
                row["at_most"] = bound.tokens_per_second
            elif batches.allows(size):
                found = score(final, context, drift)
                row |= {
                    "tokens_per_second": found.tokens_per_second, "half_width": found.interval,
                    "global_step": found.seconds,
                }  # fmt: skip
        elif outcome.kind == "oom":
            row["fits"] = False
        rows.append(row)
    return rows
