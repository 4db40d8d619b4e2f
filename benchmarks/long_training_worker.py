"""The worker of `benchmarks.long_training`: a probe's worker whose proof is a longer training.

Everything around the steps is the product's (limits, import, build, verdict); the steps, the evaluations and the
checkpoints are this file's, so that what a proof claims is tried by something else than the proof.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.outcome import Ok
from autotune.probe.protocol import ProbeRequest
from autotune.worker.__main__ import Channel, Probe, main

if TYPE_CHECKING:
    from autotune.worker.measuring.phases import Phases
    from autotune.worker.training import Training

STEPS = 50
"""Optimizer steps after the first, which makes the optimizer's state."""
MICRO_STEPS = 2
OWN_STEPS = 20
"""Steps after these in the order of a user's dataset: of them the speed is taken."""
EVERY = 10
"""Steps between two evaluations, each followed by a checkpoint."""


def train(request: ProbeRequest, training: Training, phases: Phases, warmed_up: Callable[[], None]) -> Ok:
    """Take 50 optimizer steps of the longest sequences, with evaluation and a checkpoint after every tenth."""
    import torch

    from autotune.worker.measuring.evaluation import forward_only
    from autotune.worker.measuring.measure import forget_compiler, report, warm_up
    from autotune.worker.measuring.memory_breakdown import Observer, local
    from autotune.worker.measuring.steps import Stepper

    stepper = Stepper(training, request.candidate.micro_batch, phases)
    observer = Observer(training)
    micro_steps = min(request.accumulation_steps, MICRO_STEPS)
    warm_up(stepper, micro_steps, first=micro_steps, observer=observer)
    if request.candidate.compile != "none":
        forget_compiler(stepper)
    warmed_up()
    stepper.heaviest = True
    samples = []
    for step in range(1, STEPS + 1):
        phases.detailed = step == STEPS  # what a step holds is looked at in the last, as slowly as that is
        phases.on_end = observer.look if step == STEPS else None
        samples.append(stepper.step(micro_steps))
        phases.on_end = None
        if step % EVERY:
            continue
        phases.enter("evaluation")
        forward_only(stepper, request.evaluation_micro_batch or request.candidate.micro_batch)
        phases.enter("save")
        checkpoint = Path(request.folder) / f"step-{step}.pt"
        with checkpoint.open("wb") as file:
            model = {name: local(value) for name, value in training.model.state_dict().items()}
            torch.save({"model": model, "optimizer": list(training.optimizer.state_tensors())}, file)
        checkpoint.unlink()
        phases.pause()
    if training.loader is not None:
        # The speed that is stated is of the dataset's own batches, not of its longest rows.
        stepper.heaviest = False
        samples = [stepper.step(micro_steps) for _ in range(OWN_STEPS + 1)]
    return report(request, stepper, samples[:-1], micro_steps, observer)


class LongProbe(Probe):
    """A probe of kind `prove` that trains longer than a proof does."""

    def _start(self) -> None:
        super()._start()
        import autotune.worker.measuring.prove  # only now: the baseline is taken behind the imports of a probe

        autotune.worker.measuring.prove.prove = train  # the worker looks it up when the model is built


if __name__ == "__main__":
    main(sys.argv[1], Channel(int(sys.argv[2])), LongProbe)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(0)  # as the product's worker: the verdict is out
