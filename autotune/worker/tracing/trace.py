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
from collections.abc import Sequence
from dataclasses import replace

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from autotune.candidate import Candidate
from autotune.probe.protocol import ProbeRequest
from autotune.timeline.depth import NotAlike
from autotune.timeline.timeline import Timeline
from autotune.worker.build import composition
from autotune.worker.errors import CannotRun, CannotTrace
from autotune.worker.techniques.optimizer import optimizer_maker
from autotune.worker.tracing.affine_trace import affine_timelines
from autotune.worker.tracing.exact_trace import exact_timeline
from autotune.worker.tracing.fakes.compiler import GraphBreak
from autotune.worker.tracing.shared_training import close_shared_models
from autotune.worker.tracing.shortening import reason_for_all_blocks
from autotune.worker.tracing.step_tracer import Unlike
from autotune.worker.tracing.traced_timeline import with_donors_optimizer

_NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""What torch raises where an operator cannot run on tensors without data."""


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
        close_shared_models()  # libraries are imported
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
        why_all = (
            reason_for_all_blocks(request.candidate, request.device.startswith("cuda"))
            if short
            else "asked for"
        )
        if request.candidate.engine == "deepspeed":
            return {request.candidate: _of_engine(request, began, why_all)}
        candidate = request.candidate
        if (
            others
            or request.evaluation
            or candidate.offload == "gradients"
            or not candidate.has_separate_optimizer
        ):
            donor = None
        if not why_all:
            try:
                return _attempted(request, others, began, "", donor)
            except (CannotRun, CannotTrace, GraphBreak, *_NEEDS_VALUES):
                raise
            except NotAlike as error:
                why_all = str(error)
            except Exception as error:  # noqa: BLE001 - code that counts on all blocks fails in its own way
                why_all = f"through few blocks it fails: {type(error).__name__}: {error}"
        return _attempted(request, others, began, why_all, donor)
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
    request: ProbeRequest, others: Sequence[Candidate], began: float, why_all: str, donor: Timeline | None
) -> dict[Candidate, Timeline]:
    """Trace in the first way that gives one: affine sizes, the same of a settled training, else one micro-batch."""
    for settled in _attempts(request.candidate, request.device.startswith("cuda")):
        try:
            found = affine_timelines(request, others, began, settled, why_all=why_all, donor=donor)
        except Unlike:
            continue
        if found:
            return found
        return affine_timelines(request, others, began, settled, why_all=why_all)
    if donor is not None:
        exact = with_donors_optimizer(
            request.candidate, exact_timeline(request, began, why_all=why_all, passes_alone=True), donor
        )
        if exact is not None:
            return {request.candidate: exact}
    return {request.candidate: exact_timeline(request, began, why_all=why_all)}


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


def _of_engine(request: ProbeRequest, began: float, why_all: str) -> Timeline:
    """Trace steps of one micro-step and of two: an engine treats the last micro-step apart from those before it."""
    try:
        one, two = (
            affine_timelines(request, (), began, False, count, why_all)[request.candidate] for count in (1, 2)
        )
    except Unlike:
        one, two = (exact_timeline(request, began, count, why_all) for count in (1, 2))
    return replace(one, several=two)
