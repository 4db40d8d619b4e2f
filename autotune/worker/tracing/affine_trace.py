"""A trace at two micro-batches, whose sizes give those of every larger one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

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
from autotune.worker.tracing.op_counter import Calls
from autotune.worker.tracing.recorded_training import recorded_training
from autotune.worker.tracing.shortening import GROWS_BESIDE
from autotune.worker.tracing.slot_matching import made_in, matched_slots, releases_its_own, with_slots_renamed
from autotune.worker.tracing.step_tracer import COMPILED, PLAIN, StepTracer, TracedSizes, Unlike
from autotune.worker.tracing.traced_timeline import traced_timeline, with_donors_optimizer


def affine_timelines(
    request: ProbeRequest,
    others: Sequence[Candidate],
    began: float,
    settled: bool,
    micro_steps: int = 1,
    whole: str = "",
    donor: Timeline | None = None,
) -> dict[Candidate, Timeline]:
    """Trace a micro-step at two micro-batches, and what belongs to it; return nothing where `donor` does not fit.

    Raises Unlike where the two differ in more than sizes that grow evenly.
    """
    pair = PLAIN if request.candidate.compile == "none" else COMPILED
    shared = donor is not None and not settled
    with recorded_training(request, micro_steps, whole, shared) as (recorder, training, building, shortening):
        blocks = followed_blocks(request, training.model)
        modules = [block for _, block in blocks]
        tracer = StepTracer(
            recorder, training, micro_steps, pair, shortening, modules, passes_alone=donor is not None
        )
        if request.candidate.optimizer_in_backward:
            tracer.make_state(building)
        if settled:
            StepTracer(recorder, training, pair=pair, short=shortening).settle(building)
        with nullcontext() if pair is COMPILED else AttentionKernels() as seen:
            small = tracer.micro_step(pair.least)
        first = tracer.update()
        large = tracer.micro_step(pair.more, longer=True)
        same = matched_slots(small, large)  # at once: where they differ the rest is of no use
        update = tracer.update()
        single = tracer.micro_step(1)
        if len(survivors(single)) != len(survivors(small)):  # optimizer steps release what they leave
            raise Unlike("a single sample leaves other things behind")
        of_small, _, of_large, of_update, of_single = tracer.calls
        small_blocks, _, single_blocks = tracer.passes[-3:]
        evaluated = None
        # With compiled blocks an evaluation of another size is compiled anew, with sizes left open: not traced.
        if request.evaluation and micro_steps == 1 and request.candidate.compile == "none":
            tracer.update()  # of the micro-step that is under way: an evaluation comes between two steps
            evaluated = tracer.evaluate()
        sizes, category = recorder.allocations.sizes, recorder.allocations.category
        slope = [0] * len(sizes)
        # Of blocks another number of them makes as much; compiled ones reduce in parts whose number is not affine.
        beside = set(same) - made_in(small, small_blocks)
        for ours, theirs in same.items():
            slope[ours] = _slope(pair, sizes[ours], sizes[theirs])
            # Less one: a size may be rounded down.
            if shortening is not None and ours in beside and sizes[ours] < pair.least * (slope[ours] - 1):
                raise NotAlike(GROWS_BESIDE)
            category[ours] = min(category[ours], category[theirs])
        if evaluated is not None:
            for ours, theirs in evaluated[1].items():
                slope[ours] = _slope(pair, sizes[ours], sizes[theirs])

        def timeline(
            request: ProbeRequest,
            began: float,
            built: StepEvents,
            first: StepEvents,
            later: StepEvents,
            of_update: Calls,
        ) -> Timeline:
            slopes = slope + [0] * (len(sizes) - len(slope))
            base = [size - pair.least * growth for size, growth in zip(sizes, slopes, strict=True)]
            folded = recorder.log.folded(of_small, of_large, of_single, of_update, pair.least, pair.apart)
            traced = traced_blocks(request, training.model, blocks, small_blocks, single_blocks, folded)
            forward_only = None if evaluated is None else evaluated[0]
            segments = (built, small, first, later, single, forward_only)
            return traced_timeline(
                request, recorder, training, base, slopes, segments, folded.counts, None, began, tracer.sample_bytes,
                micro_steps, seen, shortening, whole, traced,
            )  # fmt: skip

        back = {theirs: ours for ours, theirs in same.items()}
        later = with_slots_renamed(update, back)
        found = {request.candidate: timeline(request, began, building, first, later, of_update)}
        if donor is not None:
            tracer.drop()
            if not all(releases_its_own(building, segment) for segment in (small, single)):
                return {}  # something that other passes on this model have left
            composed = with_donors_optimizer(request.candidate, found[request.candidate], donor)
            return {} if composed is None else {request.candidate: composed}
        if request.evaluation:  # for the sake of one candidate
            return found
        for number, candidate in enumerate(others):
            began = time.perf_counter()
            left = tracer.micro_step(1) if number else single
            alone = request.model_copy(update={"candidate": candidate})
            try:
                updates = tracer.two_updates_of(partial(composition.make_optimizer, alone, training))
            except (CannotRun, DataDependentOutputException, UnsupportedOperatorException):
                break  # tracing it by itself says why
            # ZeRO-1 moves the parameters: another one would take them from where the first has put them.
            if updates is None or not releases_its_own(building, updates.making):
                break
            made = StepEvents([*building.events, *updates.making.events], building.marks)
            back = renamed(left, small)
            first, later = with_slots_renamed(updates.first, back), with_slots_renamed(updates.second, back)
            found[candidate] = timeline(alone, began, made, first, later, updates.calls)
        tracer.drop()
        return found


def _slope(pair: TracedSizes, small: int, large: int) -> int:
    growth, rest = divmod(large - small, pair.apart)
    if rest:
        raise Unlike(f"{small} bytes at {pair.least} samples grow to {large} at {pair.more}")
    return growth
