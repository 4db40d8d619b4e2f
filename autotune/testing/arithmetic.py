"""A device made of arithmetic, for tests of pure logic: peak and speed are functions of the candidate.

Whole searches take milliseconds on it, without torch, and its memory model can be as wrong as a test likes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

from autotune.candidate import Candidate, Checkpointing, Offload, choices
from autotune.memory.device_overhead import DeviceOverhead
from autotune.memory.predictor import Predictor
from autotune.outcome import Breakdown, Memory, Ok, Oom, Outcome, Sample, StepTiming
from autotune.search.context import SearchContext
from autotune.search.strategy import Done, Strategy, TraceFirst
from autotune.timeline.step_events import Slots, StepEvents
from autotune.timeline.timeline import Timeline
from autotune.trial import History, Trial


@dataclass(frozen=True)
class Arithmetic:
    """Peaks in bytes: state and weights once, activations and logits a sample; seconds a micro-step."""

    budget: int
    weights: int = 100
    state: int = 200
    activations: int = 50
    checkpointed: int = 10
    overhead: float = 0.03
    per_sample: float = 0.01

    def in_units(self, unit: int) -> Arithmetic:
        """Return the same device with every number of bytes multiplied."""
        return Arithmetic(
            unit * self.budget, unit * self.weights, unit * self.state, unit * self.activations,
            unit * self.checkpointed, self.overhead, self.per_sample,
        )  # fmt: skip

    def outcome(self, candidate: Candidate) -> Outcome:
        """Return what a probe of the candidate would come to."""
        weights = 0 if candidate.offload == "full" else 2 * self.weights
        state = 0 if candidate.offload != "none" else self.state
        activation = self.checkpointed if candidate.checkpointing == "full" else self.activations
        if weights > self.budget:
            return Oom(phase="build", requested=weights, free=self.budget)
        if weights + activation * candidate.micro_batch > self.budget:
            requested = weights + activation * candidate.micro_batch
            return Oom(phase="backward", requested=requested, free=self.budget)
        if weights + state > self.budget:
            return Oom(phase="optimizer", requested=weights + state, free=self.budget)
        peak = weights + state + activation * candidate.micro_batch
        if peak > self.budget:
            return Oom(phase="forward", requested=peak, free=self.budget)
        micro, step = self.times(candidate)
        return ok(peak, micro, step, self.budget)

    def times(self, candidate: Candidate) -> tuple[float, float]:
        """Return the seconds of a micro-step and of the optimizer step."""
        slower = 1.0 + 0.33 * (candidate.checkpointing == "full") + 0.5 * (candidate.offload == "full")
        micro = (self.overhead + self.per_sample * candidate.micro_batch) * slower
        return micro, 0.01 if candidate.offload == "none" else 0.5

    def timing(self, candidate: Candidate) -> StepTiming:
        """Return the same as a prediction: what it prices speed by is the device itself."""
        return _predicted(*self.times(candidate))


def foreseeing(device: Arithmetic, factor: float = 1.0) -> Predictor:
    """Return a memory model of the device, whose every number of bytes is off by a factor."""
    timelines: dict[str, Timeline] = {}
    for checkpointing, offload in product(choices("checkpointing"), choices("offload")):
        rungs = _rungs(checkpointing, offload)
        # What else a rung says changes nothing in a timeline.
        timelines |= dict.fromkeys((rung.key() for rung in rungs), timeline(device, rungs[0], factor))
    return Predictor(timelines, DeviceOverhead("cpu", 0, 0))


@cache  # of few times there are many candidates, and who times a search would time pydantic
def _predicted(micro: float, step: float) -> StepTiming:
    micro_step, optimizer_step = (Sample(mean=seconds, half_width=None, count=0) for seconds in (micro, step))
    return StepTiming(micro_step=micro_step, last_micro_step=micro_step, optimizer_step=optimizer_step)


@cache
def _rungs(checkpointing: Checkpointing, offload: Offload) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(precision=precision, checkpointing=checkpointing, offload=offload, optimizer=optimizer)
        for precision, optimizer in product(choices("precision"), choices("optimizer"))
    )


def timeline(device: Arithmetic, rung: Candidate, factor: float = 1.0) -> Timeline:
    """Return the trace of a rung: weights at the build, activations in forward, state from the first update on."""
    weights = 0 if rung.offload == "full" else 2 * device.weights
    state = 0 if rung.offload != "none" else device.state
    activation = device.checkpointed if rung.checkpointing == "full" else device.activations
    micro = StepEvents([1, ~1], [(0, "forward"), (1, "backward")])
    return Timeline(
        device="cpu",
        slots=Slots(
            base=[int(factor * weights), 0, int(factor * state), 0],
            slope=[0, int(factor * activation), 0, int(factor * activation) // 4],
            category=[0, 3, 2, 6], place=[0] * 4, module=[0] * 4,
        ),
        modules=["model"], build=StepEvents([0], [(0, "build")]), micro=micro, single=micro,
        first_update=StepEvents([2], [(0, "optimizer")]), update=StepEvents([], [(0, "optimizer")]),
        evaluation=StepEvents([3, ~3], [(0, "evaluation")]),
    )  # fmt: skip


def ok(peak: int, micro: float = 0.1, step: float = 0.01, budget: int = 1000) -> Ok:
    """Return a verdict with this peak (bytes) and these times (seconds)."""
    sample = Sample(mean=micro, half_width=micro / 100, count=5)
    return Ok(
        memory=Memory(
            allocated=peak, reserved=peak, device_peak=peak, budget=budget, baseline=0,
            breakdown=Breakdown(parameters=1, gradients=1, optimizer_state=1, activations=1, other=1),
        ),
        timing=StepTiming(
            micro_step=sample, last_micro_step=sample,
            optimizer_step=Sample(mean=step, half_width=None, count=1),
        ),
        phases=(), losses=(3.0, 2.0), accumulation_steps=2,
    )  # fmt: skip


def answered(context: SearchContext, asked: TraceFirst) -> SearchContext:
    """Return a context in which the rungs that a strategy asked for cannot be traced."""
    new = frozenset(asked.rungs) - context.untraceable
    assert new, "a strategy asks for what is not known yet"
    assert context.predictor is not None
    return context.informed(context.predictor, context.speed, context.untraceable | new)


def search(
    device: Arithmetic, context: SearchContext, strategy: Strategy, most: int = 60
) -> tuple[History, Done]:
    """Run a strategy to its end, a second a probe; return the history and the final decision.

    What it asks to have traced beyond the memory model that it was given cannot be.
    """
    history: History = ()
    for number in range(1, most):
        while isinstance(decision := strategy.propose(history, context), TraceFirst):
            context = answered(context, decision)
        if isinstance(decision, Done):
            return history, decision
        history += (
            Trial(
                number=number, candidate=decision.candidate, node=decision.node, why=decision.why,
                outcome=device.outcome(decision.candidate), seconds=1.0,
            ),
        )  # fmt: skip
    raise AssertionError(f"no end after {most} probes")
