"""Trace a training on fake tensors: every allocation that its first two optimizer steps make, and no memory taken.

The real code runs: the model's own, the candidate's techniques as `build` composes them, autograd and the
optimizer. Only tensors have no data. Two micro-batches are traced, 2 and 3, whose sizes give those of every larger
one, because shapes are affine in the micro-batch; and micro-batch 1 by itself, because operators skip copies of
dimensions of size 1. Compiled blocks are traced at 32 and 33 instead.

That does not hold where the code takes another path at another size. If it does so between 2 and 3, their events
differ, and the candidate's own micro-batch is traced alone; if it does so only beyond 3, the trace cannot know.
Experts chosen for each token are no such case as long as they are computed by grouped matrix products, whose sizes do
not depend on the choice; a loop over the experts that were chosen needs values, and is refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import torch
import transformers
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from autotune.candidate import Candidate
from autotune.probe.protocol import ProbeRequest
from autotune.timeline.composed import with_optimizer
from autotune.timeline.depth import NotAlike
from autotune.timeline.op_counts import OpCounts
from autotune.timeline.step_events import Slots, StepEvents, renamed, survivors
from autotune.timeline.timeline import Timeline
from autotune.timeline.traced_blocks import TracedBlocks
from autotune.worker.build import composition
from autotune.worker.errors import CannotRun
from autotune.worker.experts import parameter_count
from autotune.worker.measuring.attention_kernel import AttentionKernels
from autotune.worker.measuring.unfused import unfused_modules
from autotune.worker.techniques.optimizer import optimizer_maker
from autotune.worker.tracing.block_borders import BlockPasses, followed_blocks, traced_blocks
from autotune.worker.tracing.fake_training import prepare_ranks, recording
from autotune.worker.tracing.fakes.compiler import GraphBreak
from autotune.worker.tracing.op_counter import Calls
from autotune.worker.tracing.shared_training import alone, sharing
from autotune.worker.tracing.shortening import Shortening, why_whole
from autotune.worker.tracing.step_tracer import COMPILED, PLAIN, StepTracer, TracedSizes, Unlike
from autotune.worker.tracing.storage_recorder import StorageRecorder
from autotune.worker.training import Training

_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""What torch raises where an operator cannot run on tensors without data."""
_GROWS_BESIDE = "what is made beside blocks grows with their number"
"""Why few blocks do not stand for all."""


class CannotTrace(Exception):
    """The model's code cannot run without data, or not twice alike; says where, and what to do."""


def trace(request: ProbeRequest, short: bool = True) -> Timeline:
    """Trace the request's candidate on its device (`cpu`, or `cuda:0`, on any build of torch).

    The candidate's own micro-batch does not matter, except where sizes turn out not to be affine: then the
    timeline holds for that one alone. Blocks that do what others do are left out and put back, unless `short` is
    false; the timeline's fact `blocks` says how many ran, and why all where all did. Raises CannotTrace, and what
    `assemble` raises.
    """
    return trace_alike(request, (), short)[request.candidate]


def trace_alike(
    request: ProbeRequest, others: Sequence[Candidate], short: bool = True, donor: Timeline | None = None
) -> dict[Candidate, Timeline]:
    """Trace the request's candidate, and with it others that are `alike`: only their optimizers run for themselves.

    Others that turn out to differ in more than that are left out, and those whose gradients leave the device; trace
    them by themselves. With a `donor`, the timeline of a candidate whose parameters, gradients and optimizer are these
    but whose passes are others, the optimizer is taken from it and not traced, unless it does not fit. Raises as
    `trace`.
    """
    if donor is None or others or request.candidate.engine != "torch":
        alone()  # libraries are imported
    if request.candidate.engine == "deepspeed":
        composition.check_engine(request.candidate)
        import autotune.worker.tracing.fakes.deepspeed  # noqa: F401 - its library, which must not happen on fake tensors
    if request.candidate.attention == "flex_attention":
        raise CannotTrace(
            "flex_attention is compiled by itself where it is first called; only a probe shows what it takes"
        )
    began = time.perf_counter()
    others = [one for one in others if one.offload != "gradients" and _imported(one)]
    try:
        whole = why_whole(request.candidate, request.device.startswith("cuda")) if short else "asked for"
        if request.candidate.engine == "deepspeed":
            return {request.candidate: _of_engine(request, began, whole)}
        candidate = request.candidate
        if (
            others
            or request.evaluation
            or candidate.offload == "gradients"
            or not candidate.has_separate_optimizer
        ):
            donor = None
        if not whole:
            try:
                return _attempted(request, others, began, "", donor)
            except (CannotRun, CannotTrace, GraphBreak, *_NEEDS_VALUES):
                raise
            except NotAlike as error:
                whole = str(error)
            except Exception as error:  # noqa: BLE001 - code that counts on all blocks fails in its own way
                whole = f"through few blocks it fails: {type(error).__name__}: {error}"
        return _attempted(request, others, began, whole, donor)
    except GraphBreak as error:
        raise CannotTrace(
            f"torch's compiler does not take a block as one graph, and no trace follows what is between ({error}): "
            "it is probed"
        ) from error
    except _NEEDS_VALUES as error:
        raise CannotTrace(
            f"the operator {error.func} needs the values of its arguments, which a trace does not have; "
            "probe the model instead"
        ) from error


def _attempted(
    request: ProbeRequest, others: Sequence[Candidate], began: float, whole: str, donor: Timeline | None
) -> dict[Candidate, Timeline]:
    """Trace in the first way that gives one: affine sizes, the same of a settled training, else one micro-batch."""
    for settled in _attempts(request.candidate, request.device.startswith("cuda")):
        try:
            found = _affine(request, others, began, settled, whole=whole, donor=donor)
        except Unlike:
            continue
        if found:
            return found
        return _affine(request, others, began, settled, whole=whole)
    if donor is not None:
        exact = _with_donor(request.candidate, _exact(request, began, whole=whole, passes_alone=True), donor)
        if exact is not None:
            return {request.candidate: exact}
    return {request.candidate: _exact(request, began, whole=whole)}


def _with_donor(candidate: Candidate, passes: Timeline, donor: Timeline) -> Timeline | None:
    """Return the timeline of passes that were traced alone, with a donor's optimizer; None where it does not fit."""
    composed = with_optimizer(candidate, passes, donor, donor)
    if composed is None:
        return None
    return replace(composed, facts={**composed.facts, "seconds": passes.facts["seconds"]})


def _attempts(candidate: Candidate, on_cuda: bool) -> tuple[bool, ...]:
    """Return for which sorts of training two micro-batches are compared: as it is, and settled by a first pass.

    Compiling a third size would cost more than it may give. A memory budget is kept by a choice for each size.
    Gradients that leave a GPU get their room on the host in the first pass.
    """
    if candidate.activation_memory_budget != "none":
        return ()
    if candidate.offload == "gradients" and on_cuda:
        return (True,)
    return (False, True) if candidate.compile == "none" else (False,)


def _imported(candidate: Candidate) -> bool:
    """Import the optimizer's library, which must not happen on fake tensors; False where it is missing."""
    try:
        optimizer_maker(candidate.optimizer, 1)
    except CannotRun:
        return False
    return True


def _of_engine(request: ProbeRequest, began: float, whole: str) -> Timeline:
    """Trace steps of one micro-step and of two: an engine treats the last micro-step apart from those before it."""
    try:
        one, two = (_affine(request, (), began, False, count, whole)[request.candidate] for count in (1, 2))
    except Unlike:
        one, two = (_exact(request, began, count, whole) for count in (1, 2))
    return replace(one, several=two)


@contextmanager
def _recording(
    request: ProbeRequest, micro_steps: int, whole: str, shared: bool = False
) -> Iterator[tuple[StorageRecorder, Training, StepEvents, Shortening | None]]:
    """Return a recorder, a training and how it was built, and how few blocks stand for all; `shared` if that serves."""
    kept = sharing(request) if shared else None
    if kept is not None:
        with kept.recording(request, bool(whole)) as found:
            yield found
        return
    with recording(request, micro_steps, alone()) as (recorder, training, building):
        shortening = None if whole else Shortening.of(training, request)
        prepare_ranks(request, recorder, training, building, shortening)
        yield recorder, training, building, shortening


def _affine(
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
    with _recording(request, micro_steps, whole, shared) as (recorder, training, building, shortening):
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
        same = _matched(small, large)  # at once: where they differ the rest is of no use
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
        sizes, category = recorder.sizes, recorder.category
        slope = [0] * len(sizes)
        # Of blocks another number of them makes as much; compiled ones reduce in parts whose number is not affine.
        beside = set(same) - _made_in(small, small_blocks)
        for ours, theirs in same.items():
            slope[ours] = _slope(pair, sizes[ours], sizes[theirs])
            # Less one: a size may be rounded down.
            if shortening is not None and ours in beside and sizes[ours] < pair.least * (slope[ours] - 1):
                raise NotAlike(_GROWS_BESIDE)
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
            return _timeline(
                request, recorder, training, base, slopes, segments, folded.counts, None, began, tracer.sample_bytes,
                micro_steps, seen, shortening, whole, traced,
            )  # fmt: skip

        back = {theirs: ours for ours, theirs in same.items()}
        later = _renamed(update, back)
        found = {request.candidate: timeline(request, began, building, first, later, of_update)}
        if donor is not None:
            tracer.drop()
            if not all(_releases_its_own(building, segment) for segment in (small, single)):
                return {}  # something that other passes on this model have left
            composed = _with_donor(request.candidate, found[request.candidate], donor)
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
            if updates is None or not _releases_its_own(building, updates.making):
                break
            made = StepEvents([*building.events, *updates.making.events], building.marks)
            back = renamed(left, small)
            first, later = _renamed(updates.first, back), _renamed(updates.second, back)
            found[candidate] = timeline(alone, began, made, first, later, updates.calls)
        tracer.drop()
        return found


def _slope(pair: TracedSizes, small: int, large: int) -> int:
    growth, rest = divmod(large - small, pair.apart)
    if rest:
        raise Unlike(f"{small} bytes at {pair.least} samples grow to {large} at {pair.more}")
    return growth


def _exact(
    request: ProbeRequest, began: float, micro_steps: int = 1, whole: str = "", passes_alone: bool = False
) -> Timeline:
    """Trace steps of the candidate's own micro-batch; with `passes_alone` no optimizer steps."""
    micro_batch = request.candidate.micro_batch
    with _recording(request, micro_steps, whole) as (recorder, training, building, shortening):
        tracer = StepTracer(recorder, training, micro_steps, short=shortening, passes_alone=passes_alone)
        if request.candidate.optimizer_in_backward:
            tracer.make_state(building)
        if request.candidate.engine == "torch":
            StepTracer(recorder, training, short=shortening).settle(building, micro_batch)
        with AttentionKernels() if request.candidate.compile == "none" else nullcontext() as seen:
            micro = tracer.micro_step(micro_batch)
        first = tracer.update()
        again = tracer.micro_step(micro_batch, longer=True)
        update = tracer.update()
        try:
            same = _matched(micro, again)
        except Unlike as error:
            if shortening is not None:
                raise NotAlike(f"steps through few and through more of them differ ({error})") from error
            raise CannotTrace(
                "the model allocates differently at its first and its second step, so one trace does not "
                f"stand for all ({error}); probe it instead (--no-predict)"
            ) from error
        if shortening is not None and any(recorder.sizes[our] != recorder.sizes[same[our]] for our in same):
            raise NotAlike(_GROWS_BESIDE)
        later = _renamed(update, {theirs: ours for ours, theirs in same.items()})
        of_micro, _, _, of_update = tracer.calls
        work = recorder.log.work(of_micro, of_micro, None, of_update, micro_batch)
        zero = [0] * len(recorder.sizes)
        return _timeline(
            request, recorder, training, recorder.sizes, zero, (building, micro, first, later, None, None), work,
            micro_batch, began, tracer.sample_bytes, micro_steps, seen, shortening, whole,
        )  # fmt: skip


def _matched(ours: StepEvents, theirs: StepEvents) -> dict[int, int]:
    """Map the slots of one micro-step to those of another. Raises Unlike where their events differ."""
    if len(ours.events) != len(theirs.events):
        raise Unlike(f"{len(ours.events)} and {len(theirs.events)} events")
    same: dict[int, int] = {}
    for position, (our, their) in enumerate(zip(ours.events, theirs.events, strict=True)):
        if our >= 0 and their >= 0:
            same[our] = their
        elif our >= 0 or their >= 0 or same.get(~our) != ~their:
            raise Unlike(f"event {position} of {len(ours.events)} differs")
    return same


def _made_in(segment: StepEvents, blocks: BlockPasses | None) -> set[int]:
    """Return the slots of a micro-step that blocks make."""
    spans = [] if blocks is None else [*blocks.spans.forward, *blocks.spans.backward]
    return {event for start, end in spans for event in segment.events[start:end] if event >= 0}


def _releases_its_own(building: StepEvents, segment: StepEvents) -> bool:
    """Tell whether a micro-step releases only what it made, or what was built."""
    made = {event for event in (*building.events, *segment.events) if event >= 0}
    return all(~event in made for event in segment.events if event < 0)


def _renamed(segment: StepEvents, names: dict[int, int]) -> StepEvents:
    return StepEvents([_translated(event, names) for event in segment.events], segment.marks)


def _translated(event: int, names: dict[int, int]) -> int:
    return names.get(event, event) if event >= 0 else ~names.get(~event, ~event)


def _timeline(
    request: ProbeRequest,
    recorder: StorageRecorder,
    training: Training,
    base: list[int],
    slope: list[int],
    segments: tuple[StepEvents, StepEvents, StepEvents, StepEvents, StepEvents | None, StepEvents | None],
    work: OpCounts,
    exact: int | None,
    began: float,
    sample_bytes: int,
    micro_steps: int,
    seen: AttentionKernels | None,
    shortening: Shortening | None,
    whole: str,
    blocks: TracedBlocks | None = None,
) -> Timeline:
    """Return the timeline of all segments, with the slots that they use numbered from 0 on."""
    building, micro, first, update, single, evaluation = segments
    used: dict[int, int] = {}
    for segment in filter(None, segments):
        for event in segment.events:
            used.setdefault(event if event >= 0 else ~event, len(used))
    kept = list(used)

    def of(values: list[int]) -> list[int]:
        return [values[slot] for slot in kept]

    def renumbered(segment: StepEvents) -> StepEvents:
        return StepEvents(
            [_translated(event, used) for event in segment.events],
            segment.marks,
            [entry._replace(slot=used[entry.slot]) for entry in segment.accumulated],
        )

    return Timeline(
        device="cuda" if request.device.startswith("cuda") else "cpu",
        slots=Slots(of(base), of(slope), of(recorder.category), of(recorder.place), of(recorder.module)),
        modules=recorder.modules,
        build=renumbered(building),
        micro=renumbered(micro),
        single=None if single is None else renumbered(single),
        first_update=renumbered(first),
        update=renumbered(update),
        evaluation=None if evaluation is None else renumbered(evaluation),
        work=work if micro_steps == 1 else None,
        exact=exact,
        attention_kernels=seen.kernels if seen else (),
        unfused=unfused_modules(training.model, request.candidate.attention, training.attention),
        micro_steps=micro_steps,
        blocks=blocks,
        facts={
            "model": type(training.model).__name__,
            "rung": request.candidate.rung().key(),
            "sharding": request.candidate.sharding,
            "engine": request.candidate.engine,
            "reduce_dtype": request.candidate.reduce_dtype,
            "world_size": request.world_size,
            "nodes": request.nodes,
            "parameters": parameter_count(training.model),
            "seq_len": request.seq_len,
            "sample_bytes": sample_bytes,
            "tokens_per_sample": training.tokens_per_sample,
            "attention": training.attention or "",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "blocks": shortening.described() if shortening else f"all: {whole or 'too few are alike'}",
            "seconds": round(time.perf_counter() - began, 3),
        },
    )
