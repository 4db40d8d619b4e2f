"""An executor that answers from arithmetic: the whole loop runs on it, without torch, in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autotune.candidate import Candidate
from autotune.executors.executor import ProbeResult
from autotune.outcome import Crash, Ok, Outcome
from autotune.probe.protocol import Inspection, ProbeRequest
from autotune.site import Site
from autotune.specs import DeviceFacts, ModelFacts
from autotune.techniques.check import this_machine
from autotune.testing.arithmetic import Arithmetic

FACTS = ModelFacts(
    task="causal-lm", model_class="Made", parameters=10, trainable_parameters=10, active_parameters=10, layers=1,
    hidden=1, block_class="Block", blocks=2, tokens_per_sample=100, torch_version="0", transformers_version="0",
)  # fmt: skip


class ArithmeticExecutor:
    """Answers every request at once; `overrides` replace the outcome of a candidate or of a proof."""

    def __init__(self, device: Arithmetic, room: int = 10**9) -> None:
        self.device = device
        self.room = room
        facts = DeviceFacts(
            kind="cpu", name="arithmetic", torch_name="cpu", budget=device.budget, total=device.budget,
            dtypes=("bf16",),
        )  # fmt: skip
        self.site = Site(device=facts, machine=this_machine())
        self.answer: Callable[[Candidate], Outcome] = device.outcome
        """What a candidate comes to, unless it has an outcome of its own below."""
        self.launched: list[tuple[str, Candidate]] = []
        self.requests: list[ProbeRequest] = []
        self.trains: dict[Candidate, Outcome] = {}
        self.proofs: dict[Candidate, Outcome] = {}
        self.inspection: Outcome | Inspection = Inspection(facts=FACTS)

    def describe(self) -> Site:
        return self.site

    def alter_device(self, **facts: object) -> None:
        """Have the device be another."""
        self.site = self.site.model_copy(update={"device": self.site.device.model_copy(update=facts)})

    def offload_room(self, folder: Path, place: str) -> int:
        return self.room

    def run(self, request, folder, *, timeout, on_progress=None) -> ProbeResult:
        self.launched.append((request.kind, request.candidate))
        self.requests.append(request)
        if request.kind == "inspect":
            return ProbeResult(answer=self.inspection, baseline=0, seconds=0.1)
        chosen = self.trains if request.kind == "train" else self.proofs
        outcome = chosen.get(request.candidate) or self.answer(request.candidate)
        return ProbeResult(answer=outcome, baseline=0, seconds=1.0)


def crash(message: str = "ValueError: no", reason: str = "exception") -> Crash:
    """Return a crash as a bug in a model makes it."""
    return Crash(reason=reason, phase="forward", message=message, traceback=f"Traceback\n{message}")


def slower(outcome: Ok, factor: float) -> Ok:
    """Return the same verdict with a slower micro-step."""
    sample = outcome.timing.micro_step.model_copy(update={"mean": outcome.timing.micro_step.mean * factor})
    timing = outcome.timing.model_copy(update={"micro_step": sample, "last_micro_step": sample})
    return outcome.model_copy(update={"timing": timing})
