"""What the models say of configurations that were not probed: the winner's neighbours, and rungs at several sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autotune.candidate import Candidate
from autotune.prediction import Priced
from autotune.run.predictions import Predictions
from autotune.search.context import SearchContext
from autotune.search.incumbent import is_bounded
from autotune.search.pareto import measured_points, pareto_front, predicted_points
from autotune.search.sensitivity import neighbours
from autotune.trial import History

FACTOR = 4
"""By which a rung's micro-batches shrink from the largest that fits."""
SIZES = 3
"""Smaller micro-batches of a rung that are priced, at most."""


def survey(
    predictions: Predictions,
    winner: Candidate,
    rungs: Iterable[Candidate],
    history: History,
    context: SearchContext,
    measured: bool = True,
) -> tuple[Priced, ...]:
    """Price what a trace covers and no trial of the history measured the speed of, each once; nothing is traced.

    That is the winner's neighbours; each of the `rungs` at the largest micro-batch that is predicted to fit; and of
    those that nothing beats in both memory and speed, smaller micro-batches too. Trials correct the models where they
    were `measured`: what is predicted is no surer for predictions that agree with it.
    """
    taught = history if measured else ()
    found: dict[Candidate, Priced] = {}
    tried = {trial.candidate for trial in history if not is_bounded(trial)}

    def add(candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            if candidate not in tried and candidate not in found:
                priced = _price(predictions, candidate, taught, context)
                if priced is not None:
                    found[candidate] = priced

    add(step.candidate for step in neighbours(winner, context) if context.refusal(step.candidate) is None)
    predictor = predictions.predictor.calibrated(taught, context.budget)
    largest = {}
    for rung in dict.fromkeys(candidate.rung() for candidate in rungs):
        if size := predictor.largest(rung, context.usable, context.batches(rung).useful):
            largest[rung] = size
    add(rung.at(size) for rung, size in largest.items())
    points = [*measured_points(history, context), *predicted_points(found.values(), context)]
    for rung in dict.fromkeys(point.candidate.rung() for point in pareto_front(points)):
        if rung in largest:
            add(_smaller(rung, largest[rung], context))
    return tuple(found.values())


def _smaller(rung: Candidate, size: int, context: SearchContext) -> Iterator[Candidate]:
    for _ in range(SIZES):
        if (smaller := context.batches(rung).up_to(0, size // FACTOR)) is None:
            return
        size = smaller
        yield rung.at(size)


def _price(
    predictions: Predictions, candidate: Candidate, history: History, context: SearchContext
) -> Priced | None:
    batches = context.batches(candidate)
    if not batches.allows(candidate.micro_batch):
        return None
    prediction = predictions.predict(candidate, history)
    if prediction is None:
        return None
    seconds = half_width = None
    if prediction.timing is not None:
        steps = batches.accumulation(candidate.micro_batch).steps
        seconds, half_width = prediction.timing.global_step(steps), prediction.timing.interval(steps)
    return Priced(
        candidate=candidate, peak=prediction.peak, low=prediction.low, high=prediction.high, seconds=seconds,
        half_width=half_width,
    )  # fmt: skip
