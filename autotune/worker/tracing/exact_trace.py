"""A trace at one micro-batch, where sizes are not affine: it holds for that one alone."""

from __future__ import annotations

from contextlib import nullcontext

from autotune.probe.protocol import ProbeRequest
from autotune.timeline.depth import NotAlike
from autotune.timeline.timeline import Timeline
from autotune.worker.errors import CannotTrace
from autotune.worker.measuring.attention_kernel import AttentionKernels
from autotune.worker.tracing.recorded_training import recorded_training
from autotune.worker.tracing.shortening import GROWS_BESIDE
from autotune.worker.tracing.slot_matching import matched_slots, with_slots_renamed
from autotune.worker.tracing.step_tracer import StepTracer, Unlike
from autotune.worker.tracing.traced_timeline import Sizes, TrainingSegments, traced_timeline


def exact_timeline(
    request: ProbeRequest, began: float, micro_steps: int = 1, why_all: str = "", passes_alone: bool = False
) -> Timeline:
    """Trace steps of the candidate's own micro-batch; with `passes_alone` no optimizer steps."""
    micro_batch = request.candidate.micro_batch
    with recorded_training(request, micro_steps, why_all) as fake:
        recorder, training, short = fake.recorder, fake.training, fake.short
        tracer = StepTracer(recorder, training, micro_steps, short=short, passes_alone=passes_alone)
        if request.candidate.optimizer_in_backward:
            tracer.make_state(fake.building)
        if request.candidate.engine == "torch":
            StepTracer(recorder, training, short=short).settle(fake.building, micro_batch)
        with AttentionKernels() if request.candidate.compile == "none" else nullcontext() as seen:
            micro = tracer.micro_step(micro_batch)
        first = tracer.update()
        again = tracer.micro_step(micro_batch, longer=True)
        update = tracer.update()
        try:
            same = matched_slots(micro.events, again.events)
        except Unlike as error:
            if short is not None:
                raise NotAlike(f"steps through few and through more of them differ ({error})") from error
            raise CannotTrace(
                "the model allocates differently at its first and its second step, so one trace does not "
                f"stand for all ({error}); probe it instead (--no-predict)"
            ) from error
        sizes = recorder.allocations.sizes
        if short is not None and any(sizes[our] != sizes[same[our]] for our in same):
            raise NotAlike(GROWS_BESIDE)
        later = with_slots_renamed(update.events, {theirs: ours for ours, theirs in same.items()})
        folded = recorder.log.folded(micro.calls, micro.calls, None, update.calls, micro_batch)
        return traced_timeline(
            request, fake, tracer, TrainingSegments(fake.building, micro.events, first.events, later),
            Sizes(sizes, [0] * len(sizes)), folded.counts,
            seen.kernels if seen else (), began, exact=micro_batch,
        )  # fmt: skip
