"""A finished run with as many trials as one likes, made of arithmetic: what large reports are tried with."""

from __future__ import annotations

import dataclasses
from itertools import islice, product

from autotune.candidate import Candidate, choices
from autotune.outcome import Breakdown, Ok
from autotune.prediction import Prediction
from autotune.reporting.reported import Reported
from autotune.run.events import Entry, Finished, Started
from autotune.run.record import Record
from autotune.testing.arithmetic import Arithmetic

AXES = ("checkpointing", "loss", "attention", "kernels", "offload")


def with_trials(run: Reported, device: Arithmetic, count: int) -> Reported:
    """Return a decided run whose probes are followed by so many others, each with a prediction."""
    entries: list[Entry] = [entry for entry in run.record.entries if entry.type != "decided"]
    decided = run.record.decided
    assert decided is not None
    first = run.record.next_number
    tried = {trial.candidate for trial in run.record.history}
    for number, candidate in enumerate(_candidates(count, tried), first):
        outcome = device.outcome(candidate)
        peak = outcome.memory.peak() if isinstance(outcome, Ok) else int(1.2 * device.budget)
        prediction = Prediction(
            allocated=peak, reserved=peak, peak=int(1.02 * peak), low=int(0.97 * peak), high=int(1.07 * peak),
            breakdown=Breakdown(
                parameters=peak // 4, gradients=peak // 4, optimizer_state=0, activations=peak // 2, other=0
            ),
            timing=device.timing(candidate),
            roofline=device.timing(candidate),
        )  # fmt: skip
        why = f"predicted {number % 40}% faster (± 12%) than bf16 at micro-batch {number % 64 + 1}"
        time = "2026-11-22T12:00:00+00:00"
        entries.append(
            Started(
                number=number, candidate=candidate, node="start", why=why, time=time, prediction=prediction
            )
        )
        entries.append(Finished(number=number, outcome=outcome, seconds=3.5))
    return dataclasses.replace(run, record=Record.of([*entries, decided]))


def _candidates(count: int, tried: set[Candidate]) -> list[Candidate]:
    values = product(*(choices(axis) for axis in AXES), (1, 2, 4, 8, 16, 32, 64))
    made = (
        Candidate.model_construct(
            **{**dict(Candidate()), **dict(zip((*AXES, "micro_batch"), each, strict=True))}
        )
        for each in values
    )
    found = list(islice((candidate for candidate in made if candidate not in tried), count))
    assert len(found) == count
    return found
