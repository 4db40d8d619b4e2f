"""A `prove` probe: whole global steps, then an evaluation pass and a checkpoint, as production training has
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from autotune.outcome import Ok
from autotune.probe.protocol import ProbeRequest
from autotune.train.evaluation import forward_only, largest_evaluation
from autotune.train.holdings import Observer, local
from autotune.train.measure import MICRO_STEPS, forget_compiler, report, sample, warm_up
from autotune.train.phases import Phases
from autotune.train.steps import Parts, Stepper
from autotune.train.training import Training

WHOLE_STEPS = 3
"""Global steps after warm-up, at least, so that the loss can be seen to fall."""
CHECKPOINT = "checkpoint.pt"


def prove(request: ProbeRequest, training: Training, phases: Phases, warmed_up: Callable[[], None]) -> Ok:
    """Run whole global steps within `sample_seconds`, evaluate one micro-batch, save and delete a checkpoint.

    The first step has two micro-steps, to learn how long one takes. Where three whole global steps do not
    fit, all are cut to as many micro-steps as do, but at least two; `Ok.accumulation_steps` says how many.
    Memory is as in `measure.report`, evaluation and checkpoint included in `reserved` and `device_peak` (not
    in `allocated`), and each with a peak of its own in `phases`. `evaluation_loss` is of a batch that was not
    trained on. Then a larger micro-batch for evaluation is looked for, which no number of memory includes.
    """
    began = time.perf_counter()
    stepper = Stepper(training, request.candidate.micro_batch, phases)
    observer = Observer(training)
    few = min(request.accumulation_steps, MICRO_STEPS)
    parts = warm_up(stepper, few, first=few, observer=observer)
    if request.candidate.compile != "none":
        forget_compiler(stepper)
    warmed_up()
    spent = time.perf_counter() - began
    fitting = steps_that_fit(request.accumulation_steps, request.sample_seconds - spent, parts)
    micro_steps = -int(training.ranks.largest(-fitting))  # as many as all ranks have time for
    samples = sample(
        stepper, request, micro_steps, minimum=WHOLE_STEPS,
        deadline=began + request.sample_seconds, observer=observer,
    )  # fmt: skip
    phases.close_look = True
    evaluation_loss = evaluate(stepper)
    checkpoint_bytes = save(training, Path(request.folder), phases)
    outcome = report(request, stepper, samples, micro_steps, observer)
    evaluated = next(entry for entry in outcome.phases if entry.phase == "evaluation")
    return outcome.model_copy(
        update={
            "evaluation_loss": evaluation_loss,
            "checkpoint_bytes": checkpoint_bytes,
            # Last: what it takes is none of the training's, and a refusal is no failure.
            "evaluation_micro_batch": largest_evaluation(request, stepper, evaluated),
        }
    )


def steps_that_fit(accumulation_steps: int, seconds: float, parts: Parts) -> int:
    """Return how many micro-steps a global step may have so that three fit in `seconds`; at least two, or
    all.
    """
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
    """Write model and optimizer state to disk tensor by tensor, as training would; return its bytes, and
    delete it.
    """
    phases.enter("save")
    path = folder / CHECKPOINT
    try:
        # A Python file, because torch's own reports a full disk without saying so.
        with path.open("wb") as file:
            model = {name: local(value) for name, value in training.model.state_dict().items()}
            torch.save({"model": model, "optimizer": list(training.optimizer.state_tensors())}, file)
        size = path.stat().st_size
    finally:
        path.unlink(missing_ok=True)
    phases.pause()
    return size
