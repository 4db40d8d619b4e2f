"""A trace at two micro-batches, whose sizes give those of every larger one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

from torch._subclasses.fake_tensor import DataDependentOutputException, UnsupportedOperatorException

from autotune.candidate import Candidate
from autotune.probe.protocol import ProbeRequest
from autotune.timeline.depth import NotAlike
from autotune.timeline.step_events import StepEvents, renamed, survivors
from autotune.timeline.timeline import Timeline
from autotune.worker.build import composition
from autotune.worker.errors import CannotRun
from autotune.worker.measuring.attention_kernel import AttentionKernels
from autotune.worker.tracing.block_borders import followed_blocks, traced_blocks
from autotune.worker.tracing.fake_training import FakeTraining
from autotune.worker.tracing.op_counter import Calls
from autotune.worker.tracing.recorded_training import recorded_training
from autotune.worker.tracing.shortening import GROWS_BESIDE
from autotune.worker.tracing.slot_matching import made_in, matched_slots, releases_its_own, with_slots_renamed
from autotune.worker.tracing.step_tracer import COMPILED, PLAIN, StepTracer, Unlike
from autotune.worker.tracing.traced_timeline import (
    Sizes,
    TrainingSegments,
    traced_timeline,
    with_donors_optimizer,
)


def affine_timelines(
    request: ProbeRequest,
    others: Sequence[Candidate],
    began: float,
    settled: bool,
    micro_steps: int = 1,
    why_all: str = "",
    donor: Timeline | None = None,
) -> dict[Candidate, Timeline]:
    """Trace a micro-step at two micro-batches, and what belongs to it; return nothing where `donor` does not fit.

    `settled` traces behind a first micro-step, and counts what that leaves as built. Raises Unlike where the two
    differ in more than sizes that grow evenly.
    """
    shared = donor is not None and not settled
    with recorded_training(request, micro_steps, why_all, shared) as fake:
        trace = _AffineTrace(request, fake, micro_steps, passes_alone=donor is not None)
        own = trace.run(settled)
        timeline = trace.timeline(request, own, began)
        found = {request.candidate: timeline}
        if donor is not None:
            composed = with_donors_optimizer(request.candidate, timeline, donor)
            # Something may be released that other passes on this model have left.
            found = {request.candidate: composed} if composed is not None and trace.is_closed() else {}
        elif not request.evaluation:  # which is traced for the sake of one candidate
            found |= trace.of_others(others)
        trace.drop()
        return found


class _Updates(NamedTuple):
    """How an optimizer came to be and what it does, in the slots of the smaller micro-step."""

    building: StepEvents
    """The model, and the optimizer."""
    first: StepEvents
    second: StepEvents
    calls: Calls
    """What ran in the second step."""


class _AffineTrace:
    """One model's micro-steps at two micro-batches and with a single sample, and the optimizers behind them."""

    def __init__(
        self, request: ProbeRequest, fake: FakeTraining, micro_steps: int, passes_alone: bool
    ) -> None:
        """Take a training that was just built; `micro_steps` and `passes_alone` are those of `StepTracer`."""
        self._request = request
        self._fake = fake
        self._pair = PLAIN if request.candidate.compile == "none" else COMPILED
        self._blocks = followed_blocks(request, fake.training.model)
        self._tracer = StepTracer(
            fake.recorder, fake.training, micro_steps, self._pair, fake.short, [block for _, block in self._blocks],
            passes_alone,
        )  # fmt: skip

    def run(self, settled: bool) -> _Updates:
        """Trace the request's candidate. Raises Unlike, and NotAlike where blocks do not stand for others."""
        request, tracer, pair, building = self._request, self._tracer, self._pair, self._fake.building
        if request.candidate.optimizer_in_backward:
            tracer.make_state(building)
        if settled:
            StepTracer(self._fake.recorder, self._fake.training, pair=pair, short=self._fake.short).settle(
                building
            )
        with nullcontext() if pair is COMPILED else AttentionKernels() as seen:
            self._small = tracer.micro_step(pair.least)
        self._kernels = seen.kernels if seen else ()
        first = tracer.update()
        large = tracer.micro_step(pair.more, longer=True)
        self._same = matched_slots(
            self._small.events, large.events
        )  # at once: where they differ the rest is of no use
        update = tracer.update()
        self._single = tracer.micro_step(1)
        if len(survivors(self._single.events)) != len(
            survivors(self._small.events)
        ):  # optimizer steps release what they leave
            raise Unlike("a single sample leaves other things behind")
        self._calls = self._small.calls, large.calls, self._single.calls
        self._evaluated: tuple[StepEvents, dict[int, int]] | None = None
        # With compiled blocks an evaluation of another size is compiled anew, with sizes left open: not traced.
        if request.evaluation and tracer.micro_steps == 1 and pair is PLAIN:
            tracer.update()  # of the micro-step that is under way: an evaluation comes between two steps
            self._evaluated = tracer.evaluate()
        self._slopes = self._growth()
        back = {theirs: ours for ours, theirs in self._same.items()}
        return _Updates(building, first.events, with_slots_renamed(update.events, back), update.calls)

    def _growth(self) -> list[int]:
        """Return the bytes that one more sample adds to each slot so far."""
        sizes, category = self._fake.recorder.allocations.sizes, self._fake.recorder.allocations.category
        slopes = [0] * len(sizes)
        # Of blocks another number of them makes as much; compiled ones reduce in parts whose number is not affine.
        beside = set(self._same) - made_in(self._small.events, self._small.blocks)
        for ours, theirs in self._same.items():
            slopes[ours] = slope = self._slope(sizes[ours], sizes[theirs])
            # Less one: a size may be rounded down.
            if (
                self._fake.short is not None
                and ours in beside
                and sizes[ours] < self._pair.least * (slope - 1)
            ):
                raise NotAlike(GROWS_BESIDE)
            category[ours] = min(category[ours], category[theirs])
        if self._evaluated is not None:
            for ours, theirs in self._evaluated[1].items():
                slopes[ours] = self._slope(sizes[ours], sizes[theirs])
        return slopes

    def _slope(self, small: int, large: int) -> int:
        growth, rest = divmod(large - small, self._pair.apart)
        if rest:
            raise Unlike(f"{small} bytes at {self._pair.least} samples grow to {large} at {self._pair.more}")
        return growth

    def timeline(self, request: ProbeRequest, updates: _Updates, began: float) -> Timeline:
        """Return the timeline of a candidate with these passes and the optimizer that was traced."""
        recorder, pair = self._fake.recorder, self._pair
        sizes = recorder.allocations.sizes
        slope = self._slopes + [0] * (len(sizes) - len(self._slopes))
        base = [size - pair.least * growth for size, growth in zip(sizes, slope, strict=True)]
        folded = recorder.log.folded(*self._calls, updates.calls, pair.least, pair.apart)
        evaluation = None if self._evaluated is None else self._evaluated[0]
        return traced_timeline(
            request, self._fake, self._tracer,
            TrainingSegments(
                updates.building, self._small.events, updates.first, updates.second, self._single.events, evaluation
            ),
            Sizes(base, slope), folded.counts, self._kernels, began,
            traced_blocks(
                request, self._fake.training.model, self._blocks, self._small.blocks, self._single.blocks, folded
            ),
        )  # fmt: skip

    def of_others(self, others: Sequence[Candidate]) -> dict[Candidate, Timeline]:
        """Return the timelines of candidates with these passes, whose optimizers alone are traced.

        Without the first that differs in more than that, and those behind it.
        """
        building = self._fake.building
        found: dict[Candidate, Timeline] = {}
        for number, candidate in enumerate(others):
            began = time.perf_counter()
            left = self._tracer.micro_step(1) if number else self._single
            alone = self._request.model_copy(update={"candidate": candidate})
            try:
                updates = self._tracer.two_updates_of(
                    partial(composition.make_optimizer, alone, self._fake.training)
                )
            except (CannotRun, DataDependentOutputException, UnsupportedOperatorException):
                break  # tracing it by itself says why
            # ZeRO-1 moves the parameters: another one would take them from where the first has put them.
            if updates is None or not releases_its_own(building, updates.making):
                break
            made = StepEvents([*building.events, *updates.making.events], building.marks)
            back = renamed(left.events, self._small.events)
            first, second = with_slots_renamed(updates.first, back), with_slots_renamed(updates.second, back)
            found[candidate] = self.timeline(alone, _Updates(made, first, second, updates.calls), began)
        return found

    def is_closed(self) -> bool:
        """Tell whether the passes release only what they made, or what was built."""
        return all(releases_its_own(self._fake.building, step.events) for step in (self._small, self._single))

    def drop(self) -> None:
        """Release what the last micro-step left, unrecorded."""
        self._tracer.drop()
