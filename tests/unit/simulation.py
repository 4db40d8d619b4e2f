"""A device made of arithmetic, for tests of pure logic: peak and speed are functions of the candidate."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.candidate import Candidate
from autotune.outcome import Breakdown, Memory, Ok, Oom, Outcome, Sample, StepTiming
from autotune.strategies.decision import Scope


@dataclass(frozen=True)
class Arithmetic:
    """Peaks in bytes: state and weights once, activations and logits a sample; seconds a micro-step."""

    budget: int
    weights: int = 100
    state: int = 200
    activations: int = 50
    checkpointed: int = 10
    overhead: float = 0.02
    per_sample: float = 0.01

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
        slower = 1.0 + 0.33 * (candidate.checkpointing == "full") + 0.5 * (candidate.offload == "full")
        micro = (self.overhead + self.per_sample * candidate.micro_batch) * slower
        step = 0.01 if candidate.offload == "none" else 0.5
        return ok(peak, micro, step, self.budget)


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


def search(device: Arithmetic, space, scope: Scope, propose, most: int = 60):
    """Run a strategy to its end; return the history and the final decision."""
    from autotune.strategies.decision import Done
    from autotune.trial import Trial

    history = ()
    for number in range(1, most):
        decision = propose(history, space, scope)
        if isinstance(decision, Done):
            return history, decision
        history += (
            Trial(
                number=number, candidate=decision.candidate, node=decision.node, why=decision.why,
                outcome=device.outcome(decision.candidate), seconds=1.0,
            ),
        )  # fmt: skip
    raise AssertionError(f"no end after {most} probes")
