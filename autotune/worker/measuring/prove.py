"""A `prove` probe: it trains for as long as asked, then under stress, then evaluates and saves a checkpoint.

These are the loads of production training that a plain probe does not have.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import torch

from autotune.outcome import Ok, Stress
from autotune.probe.protocol import ProbeRequest
from autotune.worker.errors import DiskRefused
from autotune.worker.measuring.energy_meter import energy_meter
from autotune.worker.measuring.evaluation import forward_only, largest_evaluation
from autotune.worker.measuring.measure import report, warm_up
from autotune.worker.measuring.memory_breakdown import Observer, local
from autotune.worker.measuring.phases import Phases
from autotune.worker.measuring.steps import MICRO_STEPS, Stepper, StepTimes
from autotune.worker.measuring.stress import TIME_SHARE, run, stresses
from autotune.worker.measuring.verdict import DISK_FULL as FULL
from autotune.worker.training import Training

WHOLE_STEPS = 3
"""Global steps after warm-up, at least, so that the loss can be seen to fall."""
CHECKPOINT = "checkpoint.pt"
LOSSES_KEPT = 100
"""Losses that are kept of a proof, at most."""
SAMPLES_KEPT = 500
"""Steps of which a proof keeps the times, at least, where it has as many, and less than twice as many.

On the cpu device they count as the training's memory, and a small model takes thousands of steps a minute.
"""


def prove(request: ProbeRequest, training: Training, phases: Phases, warmed_up: Callable[[], None]) -> Ok:
    """Train for `sample_seconds`, evaluate one micro-batch, save and delete a checkpoint.

    First come steps as a probe has them, of all micro-steps of a global step; the very first has two, to learn how long
    one takes. Where three whole global steps do not fit, all are cut to as many micro-steps as do, but at least two;
    `Ok.accumulation_steps` says how many. Then come those of `stress`, each for its share of the time.

    Memory is as in `measure.report`: `allocated` and the breakdown are of the first steps alone, as a probe's are;
    `reserved` and `device_peak` include all, evaluation and checkpoint too, which also have peaks of their own in
    `phases`. `evaluation_loss` is of a batch that was not trained on. Then a larger micro-batch for evaluation is
    looked for, which no number of memory includes.
    """
    began = time.perf_counter()
    stepper = Stepper(training, request.candidate.micro_batch, phases)
    observer = Observer(training)
    few = min(request.accumulation_steps, MICRO_STEPS)
    _, parts = warm_up(
        stepper, few, first=few, observer=observer, compiled=request.candidate.compile != "none"
    )
    warmed_up()
    if request.energy:
        stepper.energy = energy_meter(training.device)
    planned = stresses(request, training)
    share = TIME_SHARE * request.sample_seconds
    plain = request.sample_seconds - share * sum(not skipped for _, skipped in planned)
    fitting = steps_that_fit(request.accumulation_steps, plain - (time.perf_counter() - began), parts)
    micro_steps = -int(training.ranks.largest(-fitting))  # as many as all ranks have time for
    samples = _train(stepper, micro_steps, began + plain)
    losses, training_peak, plain_peak = tuple(stepper.losses), phases.training_peak, phases.meter.section()

    deadline = began + plain
    stressed = []
    for name, skipped in planned:
        deadline += 0 if skipped else share
        stressed.append(
            Stress(name=name, skipped=skipped) if skipped else run(name, request, stepper, deadline)
        )
    phases.training_peak = training_peak

    phases.detailed = True
    evaluation_loss = evaluate(stepper)
    checkpoint_bytes = save(training, Path(request.folder), phases)
    outcome = report(request, stepper, samples, micro_steps, observer)
    evaluated = next(entry for entry in outcome.phases if entry.phase == "evaluation")
    return outcome.model_copy(
        update={
            "losses": thinned(losses),
            "optimizer_steps": len(losses),
            "plain_peak": plain_peak,
            "stresses": tuple(stressed),
            "evaluation_loss": evaluation_loss,
            "checkpoint_bytes": checkpoint_bytes,
            # Last: what it takes is none of the training's, and a refusal is no failure.
            "evaluation_micro_batch": largest_evaluation(request, stepper, evaluated),
        }
    )


def _train(stepper: Stepper, micro_steps: int, deadline: float) -> list[StepTimes]:
    """Run global steps until the deadline (of `time.perf_counter`), three at least.

    Returns the times of all steps, or of every 2nd, 4th, 8th, ... where they are more than `SAMPLES_KEPT` lets them be.
    """
    samples: list[StepTimes] = []
    taken, apart = 0, 1
    while taken < WHOLE_STEPS or not stepper.training.ranks.largest(time.perf_counter() >= deadline):
        times = stepper.step(micro_steps)
        if taken % apart == 0:
            samples.append(times)
        taken += 1
        if len(samples) == 2 * SAMPLES_KEPT:
            del samples[1::2]
            apart *= 2
    return samples


def thinned(losses: Sequence[float]) -> tuple[float, ...]:
    """Return the losses, or an even choice of LOSSES_KEPT of them, the first and the last among them."""
    if len(losses) <= LOSSES_KEPT:
        return tuple(losses)
    return tuple(losses[round(place * (len(losses) - 1) / (LOSSES_KEPT - 1))] for place in range(LOSSES_KEPT))


def steps_that_fit(accumulation_steps: int, seconds: float, parts: StepTimes) -> int:
    """Return how many micro-steps a global step may have so that three fit in `seconds`; at least two, or all."""
    each = seconds / WHOLE_STEPS - parts.optimizer_step
    fitting = int(each / max(parts.last_micro_step, 1e-9))
    return min(accumulation_steps, max(MICRO_STEPS, fitting))


def evaluate(stepper: Stepper) -> float:
    """Run one forward pass of the next micro-batch in evaluation mode, and return its loss."""
    stepper.phases.enter("evaluation")
    loss = forward_only(stepper, stepper.micro_batch)
    stepper.phases.pause()
    return loss


def save(training: Training, folder: Path, phases: Phases) -> int:
    """Write model and optimizer state to disk tensor by tensor, as training would; return its bytes, and delete it.

    Raises DiskRefused where the disk has no room for it, before it is written or while it is.
    """
    phases.enter("save")
    path = folder / CHECKPOINT
    model = {name: local(value) for name, value in training.model.state_dict().items()}
    state = {"model": model, "optimizer": list(training.optimizer.state_tensors())}
    needed = _bytes_of((*model.values(), *state["optimizer"]))
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DiskRefused(str(folder), needed, free, "there is no room for a checkpoint")
    file = _Refusable()
    try:
        with path.open("wb") as file.file:
            torch.save(state, file)
        size = path.stat().st_size
    except (OSError, RuntimeError) as error:  # torch's writer says that writing failed, and not why
        refused = error if isinstance(error, OSError) else file.refused
        if refused is None or refused.errno not in FULL:
            raise
        free = shutil.disk_usage(folder).free
        raise DiskRefused(str(folder), needed, free, refused.strerror or str(refused)) from error
    finally:
        path.unlink(missing_ok=True)
    phases.pause()
    return size


class _Refusable:
    """A file to write to that keeps the error of a write that was refused."""

    file: BinaryIO
    refused: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.refused = error
            raise

    def flush(self) -> None:
        self.file.flush()


def _bytes_of(tensors: Iterable[object]) -> int:
    """Return the bytes of the distinct storages that tensors are saved with."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in tensors
        if isinstance(tensor, torch.Tensor)
    }
    return sum(storages.values())
