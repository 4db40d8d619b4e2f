"""Evaluation: a forward pass without gradients, and how many samples of it fit where fewer are trained on."""

from __future__ import annotations

import time

import torch

from autotune.memory.predictor import EVALUATION_TIMES
from autotune.outcome import Oom, PhaseReport
from autotune.probe.protocol import ProbeRequest
from autotune.techniques.sharding import REPLICATED
from autotune.worker.measuring.memory_meter import Lap
from autotune.worker.measuring.steps import Stepper
from autotune.worker.measuring.verdict import Circumstances, verdict
from autotune.worker.training import Batch, Ranks

TIME_SHARE = 0.1
"""Share of a proof's time that larger evaluations may take, as the smaller one's speed predicts."""


def forward_only(stepper: Stepper, micro_batch: int) -> float:
    """Run one forward pass of a batch that was not trained on, in evaluation mode, and return its loss."""
    training = stepper.training
    training.model.eval()
    try:
        with torch.no_grad():
            if training.loader is not None and micro_batch != stepper.micro_batch:
                batch: Batch = training.loader.heaviest(micro_batch)  # one is enough: no workers for others
            else:
                batch = training.batch(stepper.next_batch(), micro_batch)
            return float(training.loss(training.place(batch)))
    finally:
        training.model.train()


def largest_evaluation(request: ProbeRequest, stepper: Stepper, report: PhaseReport) -> int:
    """Return a micro-batch for evaluation that was run and fits on every rank, at least the training's.

    `report` is of an evaluation at the training's micro-batch. What it took beyond what stays on the device predicts
    the others. The first to be run is the one that a trace predicts (`evaluation_micro_batch`), else the training's
    doubled as often as there is room; what does not fit is halved. Ranks whose forward passes wait for each other
    cannot run out of memory one by one: they climb by doubling, as far as the step before predicts.
    """
    micro_batch, ranks = request.candidate.micro_batch, stepper.training.ranks
    meter = stepper.phases.meter
    usable = request.budget * (1 - request.headroom) - meter.taken
    deadline = time.perf_counter() + TIME_SHARE * request.sample_seconds
    in_time = micro_batch * TIME_SHARE * request.sample_seconds / max(report.seconds, 1e-9)
    most = int(_least(ranks, min(in_time, micro_batch * EVALUATION_TIMES)))
    each = max(1, report.peak - report.end) / micro_batch
    predicted = _least(ranks, (usable - report.end) / each)
    candidate = request.candidate
    if ranks.size > 1 and (candidate.sharding not in REPLICATED or candidate.tensor_parallel > 1):
        size = micro_batch
        while 2 * size <= min(most, predicted):
            meter.lap()
            forward_only(stepper, 2 * size)
            meter.synchronize()
            took = meter.lap()
            each = max(1, took.peak - took.end) / (2 * size)
            predicted = _least(ranks, (usable - took.end) / each)
            if _least(ranks, took.peak <= usable) == 0:
                break
            size *= 2
        return size
    size = min(most, request.evaluation_micro_batch or 0)
    if size <= micro_batch:
        size = micro_batch
        while 2 * size <= min(most, predicted):
            size *= 2
    while size > micro_batch and _least(ranks, time.perf_counter() < deadline) > 0:
        lap = _run(stepper, size)
        if _least(ranks, lap is not None and lap.peak <= usable) > 0:
            return size
        size //= 2
    return micro_batch


def _least(ranks: Ranks, value: float) -> float:
    """Return the least of the ranks' values, the same on each."""
    return -ranks.largest(-value)


def _run(stepper: Stepper, micro_batch: int) -> Lap | None:
    """Run one forward pass and return what it took; None where memory was refused for it."""
    meter = stepper.phases.meter
    meter.lap()
    try:
        forward_only(stepper, micro_batch)
        meter.synchronize()
    except Exception as error:
        at = Circumstances(phase="evaluation", step=stepper.phases.step,
                           device="cuda" if stepper.training.device.type == "cuda" else "cpu",
                           free=None, short=False)  # fmt: skip
        if not isinstance(verdict(error, at), Oom):
            raise
        return None
    return meter.lap()
