"""Evaluation: a forward pass without gradients, and how many samples of it fit where fewer are trained on."""

from __future__ import annotations

import time

import torch

from autotune.outcome import Oom, PhaseReport
from autotune.probe.protocol import ProbeRequest
from autotune.train.steps import Stepper
from autotune.train.training import Batch
from autotune.train.verdict import Circumstances, verdict

TIME_SHARE = 0.1
"""Share of a proof's time that larger evaluations may take, as the smaller one's speed foretells."""
TIMES = 16
"""How much larger than the training's it may get: a device that is busy at 16 times as much is no busier beyond."""


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
            return float(training.loss(batch))
    finally:
        training.model.train()


def largest_evaluation(request: ProbeRequest, stepper: Stepper, report: PhaseReport) -> int:
    """Return a micro-batch for evaluation that was run and fits: the training's, doubled as often as there is room.

    `report` is of an evaluation at the training's micro-batch. What it took above what rests on the device foretells
    the others, which are then run; one that memory is refused for is halved. Over several ranks, which would have to
    run out of memory together, it is the training's.
    """
    micro_batch = request.candidate.micro_batch
    meter = stepper.phases.meter
    usable = request.budget * (1 - request.headroom) - meter.taken
    if stepper.training.ranks.size > 1:
        return micro_batch
    each = max(1, report.peak - report.end) / micro_batch
    in_time = micro_batch * TIME_SHARE * request.sample_seconds / max(report.seconds, 1e-9)
    most = min((usable - report.end) / each, in_time, micro_batch * TIMES)
    size = micro_batch
    while 2 * size <= most:
        size *= 2
    deadline = time.perf_counter() + TIME_SHARE * request.sample_seconds
    while size > micro_batch and time.perf_counter() < deadline:
        if _fits(stepper, size, usable):
            return size
        size //= 2
    return micro_batch


def _fits(stepper: Stepper, micro_batch: int, usable: float) -> bool:
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
        return False
    return meter.lap().peak <= usable
