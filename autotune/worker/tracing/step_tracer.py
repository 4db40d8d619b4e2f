"""Take a training on fake tensors through its parts, one recorded segment each."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from autotune.timeline.step_events import StepEvents, survivors
from autotune.worker.measuring.steps import gradient_norm
from autotune.worker.tracing.block_borders import BlockPasses, Borders
from autotune.worker.tracing.op_counter import Calls
from autotune.worker.tracing.shortening import Shortening
from autotune.worker.tracing.storage_recorder import StorageRecorder
from autotune.worker.training import StepOptimizer, Training


class Unlike(Exception):
    """Two micro-steps that should be alike are not."""


class TracedSizes(NamedTuple):
    """The micro-batches that give the affine sizes."""

    least: int
    more: int

    @property
    def apart(self) -> int:
        """How many samples lie between them."""
        return self.more - self.least


PLAIN = TracedSizes(2, 3)
COMPILED = TracedSizes(32, 33)
"""The compiler orders operators by the sizes of their results. Where tokens are few those lie on either side of the
weights', and the order changes from one micro-batch to the next; the peaks of all orders were on one line from 2 to 64.
"""


class RecordedStep(NamedTuple):
    """A micro-step or an update: what it allocated, and what ran in it."""

    events: StepEvents
    calls: Calls
    blocks: BlockPasses | None = None
    """Where the blocks lie in it; None where that is not known."""


class Updates(NamedTuple):
    """What an optimizer does."""

    making: StepEvents
    first: StepEvents
    """Its first step, and the clearing of gradients."""
    second: StepEvents
    calls: Calls
    """What ran in the second step."""


class StepTracer:
    """Takes a training through its parts, as `autotune.worker.measuring.steps` does, one segment each."""

    def __init__(
        self,
        recorder: StorageRecorder,
        training: Training,
        micro_steps: int = 1,
        pair: TracedSizes = PLAIN,
        short: Shortening | None = None,
        blocks: Sequence[nn.Module] = (),
        passes_alone: bool = False,
    ) -> None:
        """Take a training, and how many micro-steps are recorded as one: all that an optimizer step has.

        With `short` the passes of micro-steps and evaluations run through few blocks, and are recorded as those of all;
        what takes one then raises NotAlike where blocks turn out to differ. Without it, it is noted where the passes of
        `blocks` lie. With `passes_alone` no optimizer steps: `update` drops the gradients unrecorded.
        """
        self._passes_alone = passes_alone
        self._short = short
        self._blocks = blocks
        self._recorder = recorder
        self._pair = pair
        self._training = training
        self.micro_steps = micro_steps
        """Recorded as one."""
        self._losses: list[Tensor] = []
        self._batch = 0
        self.sample_bytes = 0
        """Of a batch's tensors, for one sample."""

    def make_state(self, building: StepEvents) -> None:
        """Take a first step for an optimizer that makes its state inside backward, and count the state as built.

        So all micro-steps are alike. The peak is that of a later step, which has the state from its start.
        """
        recorder, training = self._recorder, self._training
        with recorder.segment() as segment:
            self._forward_backward(self._pair.least)
            self._losses.clear()
            gc.collect(0)
        recorder.label(training.optimizer.state_tensors(), "optimizer_state")
        building.events.extend(survivors(segment))

    def micro_step(self, micro_batch: int, longer: bool = False) -> RecordedStep:
        """Record forward and backward, of each micro-step; `longer` runs through more blocks of a shortened model."""
        recorder, training = self._recorder, self._training
        with recorder.segment() as segment, self._shortened(longer) as borders:
            self._forward_backward(micro_batch)
            gc.collect(0)
        recorder.label((parameter.grad for parameter in training.model.parameters()), "gradient")
        blocks = None
        if self._short is not None and borders is not None:
            segment, blocks = self._short.restored(segment, borders, recorder, longer, not self._passes_alone)
        elif borders is not None:
            blocks = borders.passes()
        return RecordedStep(segment, recorder.log.calls, blocks)

    def _shortened(self, longer: bool) -> AbstractContextManager[Borders | None]:
        if self._short is not None:
            return self._short.recorded(self._recorder, longer)
        return Borders(self._recorder, self._blocks).noted() if self._blocks else nullcontext()

    def _forward_backward(self, micro_batch: int) -> None:
        for index in range(self.micro_steps):
            self._one(micro_batch, last=index == self.micro_steps - 1)

    def _one(self, micro_batch: int, last: bool) -> None:
        recorder, training = self._recorder, self._training
        recorder.mark("forward")
        batch = training.place(training.batch(self._batch, micro_batch))
        self._batch += 1
        self.sample_bytes = (
            sum(value.numel() * value.element_size() for value in batch.values()) // micro_batch
        )
        with training.reduction(last):
            loss = training.loss(batch)
            recorder.label_activations()
            recorder.mark("backward")
            (loss / self.micro_steps).backward()
        self._losses.append(loss.detach())

    def update(self) -> RecordedStep:
        """Record the optimizer step and the clearing of the gradients."""
        if not self._passes_alone:
            return self._updated()
        with self._recorder.segment():
            self.drop()
        return RecordedStep(StepEvents(), {})

    def _updated(self) -> RecordedStep:
        recorder, training = self._recorder, self._training
        with recorder.segment() as segment:
            recorder.mark("optimizer")
            norm = gradient_norm(training)
            training.optimizer.step()
            recorder.label(training.optimizer.state_tensors(), "optimizer_state")
            training.optimizer.zero_grad()
            self._losses.clear()
            del norm
        return RecordedStep(segment, recorder.log.calls)

    def settle(self, building: StepEvents, micro_batch: int | None = None, longer: bool = False) -> None:
        """Run one micro-step and keep of it what it leaves for good, as part of the build.

        The first pass of sharded training prepares: FSDP2 makes the tensors that it gathers into, and DDP's buckets
        become the gradients. Some models set themselves up in theirs. Its micro-batch is none of those that are
        compared: a user's batches are made once.
        """
        first = self.micro_step(micro_batch or self._pair.more + 1, longer)
        with self._recorder.segment() as cleared:
            self.drop()
        building.events.extend(_lasting(StepEvents([*first.events.events, *cleared.events])))

    def evaluate(self) -> tuple[StepEvents, dict[int, int]] | None:
        """Record a forward pass without gradients between two steps, and the slots of a larger one by its own.

        What a first pass makes for good (FSDP2 may keep what it gathered) is part of it. None if passes differ.
        """
        first, small, large = (
            self._forward(micro_batch) for micro_batch in (self._pair.more + 1, *self._pair)
        )
        if len(small.events) != len(large.events):
            return None
        grown = {our: their for our, their in zip(small.events, large.events, strict=True) if our >= 0}
        return StepEvents([*_lasting(first), *small.events]), grown

    def _forward(self, micro_batch: int) -> StepEvents:
        recorder, training = self._recorder, self._training
        training.model.eval()
        try:
            with recorder.segment() as segment, self._shortened(longer=False) as borders, torch.no_grad():
                recorder.mark("evaluation")
                training.loss(training.place(training.batch(self._batch, micro_batch)))
                gc.collect(0)
        finally:
            training.model.train()
        if self._short is not None and borders is not None:
            segment, _ = self._short.restored(segment, borders, recorder, longer=False)
        self._batch += 1
        return segment

    def settle_whole(self, building: StepEvents) -> None:
        """Run two whole steps, and keep of them what they leave for good, as part of the build.

        For an engine that lets go of gradients in its step alone. It makes the optimizer's state as it is set up, and
        knows from its second step on in which order parameters are needed.
        """
        whole = StepEvents()
        for _ in range(2):
            for step in (self.micro_step(self._pair.more + 1), self.update()):
                whole.events.extend(step.events.events)
        building.events.extend(_lasting(whole))

    def drop(self) -> None:
        """Release what the last micro-step left, unrecorded."""
        self._training.optimizer.zero_grad()
        self._losses.clear()

    def two_updates_of(self, make: Callable[[], StepOptimizer]) -> Updates | None:
        """Record another optimizer over the gradients that the last micro-step left, and let it release them.

        None if its steps themselves let go of gradients, so that the second is not that of a training.
        """
        recorder, training = self._recorder, self._training
        with recorder.segment() as making:
            optimizer = make()
        recorder.label(training.model.parameters(), "parameter")
        recorder.label(optimizer.state_tensors(), "optimizer_state")
        before = [id(parameter.grad) for parameter in training.model.parameters()]
        steps, ends = [], []
        norms: list[Tensor] = []
        for _ in range(2):
            with recorder.segment() as step:
                recorder.mark("optimizer")
                norms.append(gradient_norm(training))
                optimizer.step()
                recorder.label(optimizer.state_tensors(), "optimizer_state")
            steps.append(step)
            calls = recorder.log.calls
        if before != [id(parameter.grad) for parameter in training.model.parameters()]:
            return None
        with recorder.segment() as cleared:
            recorder.mark("optimizer")
            optimizer.zero_grad()
            self._losses.clear()
        calls = {"optimizer": calls["optimizer"] + recorder.log.calls["optimizer"]}
        for _ in range(2):
            with recorder.segment() as end:
                del norms[0]
            ends.append(end)
        first, second = (
            StepEvents([*step.events, *cleared.events, *end.events], step.marks)
            for step, end in zip(steps, ends, strict=True)
        )
        return Updates(making, first, second, calls)


def _lasting(segment: StepEvents) -> list[int]:
    """Return the allocations that outlive a segment, and the releases of what was there before."""
    lasting: dict[int, None] = {}
    for event in segment.events:
        if event < 0 and ~event in lasting:
            del lasting[~event]
        else:
            lasting[event] = None
    return list(lasting)
