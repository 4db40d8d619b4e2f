"""Global steps: micro-steps whose gradients accumulate, then one optimizer step."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from autotune.outcome import AttentionKernel
from autotune.worker.measuring.data_wait import data_wait_on
from autotune.worker.measuring.energy_meter import EnergyMeter
from autotune.worker.measuring.memory_breakdown import local
from autotune.worker.measuring.phases import Phases
from autotune.worker.training import Batch, Training

MICRO_STEPS = 2
"""Micro-steps of a measured step, at most: with the second, activations stand beside accumulated gradients."""


class NotFinite(ArithmeticError):
    """A loss or a gradient norm is NaN or infinite; with scaled gradients, at every scale."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the {what} is not finite")
        self.what = what


@dataclass(frozen=True, slots=True)
class StepJoules:
    """Joules of the parts of one global step; as `StepTimes`."""

    micro_step: float | None
    last_micro_step: float
    optimizer_step: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of the parts of one global step."""

    micro_step: float | None
    """Mean of all micro-steps but the last; None where the last is the only one."""
    last_micro_step: float
    optimizer_step: float
    data_wait: float = 0.0
    """Of each micro-step, on the average: the device computed nothing, because its batch was not there yet. Counted in
    the micro-steps' own seconds."""
    began: float = 0.0
    """When the step did, by `time.perf_counter`."""
    energy: StepJoules | None = None
    """None where nobody asked for it."""


@dataclass(frozen=True)
class _Boundary:
    """A moment between two parts of a step, with the device at rest. Reading its energy is in neither part's time."""

    reached: float
    left: float
    joules: float = 0.0


class Stepper:
    """Drives one training, global step by global step, over the fixed stream of batches."""

    def __init__(self, training: Training, micro_batch: int, phases: Phases) -> None:
        self.training = training
        self.micro_batch = micro_batch
        self.phases = phases
        self.losses = array("d")
        """Of every optimizer step so far, the mean over its micro-steps. Compact: it counts as training's memory."""
        self.batches_taken = 0
        self.heaviest = False
        """Take the largest batch that a user's dataset has, which is the one to prove memory with."""
        self.draw: Callable[[], Batch] | None = None
        """Where batches come from instead of the training's own stream."""
        self.attention_kernels: tuple[AttentionKernel, ...] = ()
        """Those that were seen in the first step."""
        self.energy: EnergyMeter | None = None
        """What is read at the boundaries of the parts."""
        self._wait = data_wait_on(training.device)
        self._ahead: Batch | None = None

    def step(self, micro_steps: int) -> StepTimes:
        """Run one global step and return the seconds of its parts.

        The clock is read, after waiting for the device, at the boundaries of the parts alone, so that the
        device is never idle within one; there its energy is read too, where that is asked for. The optimizer's part
        includes the gradients' norm, as training that clips has. Raises NotFinite after the step.
        """
        training, phases = self.training, self.phases
        phases.begin_step()
        losses: list[Tensor] = []
        began = middle = self._boundary()
        self._wait.seconds()  # what a step that failed has left
        for index in range(micro_steps):
            if index == micro_steps - 1 and index:
                middle = self._boundary()
            losses.append(self._micro_step(micro_steps, index == micro_steps - 1))
        after_backward = self._boundary()
        phases.enter("optimizer")
        scaling = training.scaling
        skipped = scaling.skipped if scaling is not None else 0
        norm = gradient_norm(training)
        training.optimizer.step()
        training.optimizer.zero_grad()
        end = self._boundary()
        loss = math.fsum(float(loss) for loss in losses) / micro_steps
        self.losses.append(loss)
        if not math.isfinite(loss):
            phases.phase = "forward"
            raise NotFinite("loss")
        if scaling is not None and scaling.skipped > skipped:
            if scaling.collapsed:
                phases.phase = "backward"
                raise NotFinite("scale")
        elif not math.isfinite(float(norm)):
            phases.phase = "backward"
            raise NotFinite("gradient")
        phases.pause()
        others = micro_steps - 1
        energy = None
        if self.energy is not None:
            energy = StepJoules(
                micro_step=(middle.joules - began.joules) / others if others else None,
                last_micro_step=after_backward.joules - middle.joules,
                optimizer_step=end.joules - after_backward.joules,
            )
        return StepTimes(
            micro_step=(middle.reached - began.left) / others if others else None,
            last_micro_step=after_backward.reached - middle.left,
            optimizer_step=end.reached - after_backward.left,
            data_wait=self._wait.seconds() / micro_steps,
            began=began.left,
            energy=energy,
        )

    def next_batch(self) -> int:
        """Return the index of the next batch of the stream, and count it as taken."""
        self.batches_taken += 1
        return self.batches_taken - 1

    def _micro_step(self, micro_steps: int, last: bool) -> Tensor:
        """Run forward and backward of one micro-batch; return its loss, still on the device.

        Each loss is divided by the number of micro-steps, so that the accumulated gradient is the mean of the
        micro-batches' own.
        """
        self.phases.enter("forward")
        batch = self.training.place(self._batch())
        with self.training.reduction(last):
            loss = self.training.loss(batch)
            self.phases.enter("backward")
            (loss / micro_steps).backward()
        if self.phases.meter.asynchronous and self._in_order:
            # Training's host is a micro-step ahead of its device. Behind the boundary of two parts, where the device
            # is at rest, it would wait for a batch that it has while it trains.
            with self._wait:
                self._ahead = self._next_of_stream()
        return loss.detach()

    def drain(self) -> None:
        """Take from a loader what its workers made while nobody asked: training would outrun them only later."""
        loader = self.training.loader
        if loader is not None:
            for _ in range(loader.ahead + 1):
                self.training.batch(self.next_batch(), self.micro_batch)

    @property
    def _in_order(self) -> bool:
        """Whether batches are those of the stream."""
        return self.draw is None and not (self.heaviest and self.training.loader is not None)

    def _batch(self) -> Batch:
        """Return the next batch, on the host."""
        if self._in_order and self._ahead is not None:
            batch, self._ahead = self._ahead, None
            return batch
        with self._wait:
            if self._in_order:
                return self._next_of_stream()
            if self.draw is not None:
                return self.draw()
            loader = self.training.loader
            assert loader is not None, "only a dataset has a heaviest batch"
            return loader.heaviest(self.micro_batch)

    def _next_of_stream(self) -> Batch:
        return self.training.batch(self.next_batch(), self.micro_batch)

    def _boundary(self) -> _Boundary:
        self.phases.meter.synchronize()
        now = time.perf_counter()
        if self.energy is None:
            return _Boundary(now, now)
        joules = self.energy.joules()
        return _Boundary(now, time.perf_counter(), joules)


def gradient_norm(training: Training) -> Tensor:
    """Return the 2-norm of this process's gradients as one number on their device.

    It takes no memory of their size. Scaled gradients are unscaled first, as whoever clips them has to.
    """
    if training.scaling is not None:
        training.scaling.unscale()
    if training.gradients is not None:
        return torch.nn.utils.get_total_norm(list(training.gradients()))
    gradients = (parameter.grad for parameter in training.model.parameters())
    return torch.nn.utils.get_total_norm([local(gradient) for gradient in gradients if gradient is not None])
