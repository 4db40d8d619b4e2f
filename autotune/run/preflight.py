"""What may be launched: why a candidate is refused before it costs a probe."""

from __future__ import annotations

from pathlib import Path

from autotune.candidate import Candidate, OffloadPlace
from autotune.executors.executor import Executor
from autotune.memory.host_footprint import built_bytes, offloaded_bytes
from autotune.search.space import Space
from autotune.specs import ModelFacts, RunSpec
from autotune.techniques.axis import Context
from autotune.techniques.check import refusal
from autotune.units import format_bytes


class Preflight:
    """Refuses what the space, the rules, the model, or the machine rule out. `folder` is where offload would write."""

    def __init__(self, spec: RunSpec, space: Space, executor: Executor, folder: Path) -> None:
        self._spec = spec
        self._space = space
        self._executor = executor
        self._folder = folder

    def refusal(self, candidate: Candidate, accumulation_steps: int, model: ModelFacts) -> str | None:
        """Return why a candidate is refused without running it, or None."""
        goal, facts = self._spec.goal, self._executor.facts
        context = Context(
            accumulation_steps=accumulation_steps, world_size=goal.gpus, nodes=goal.nodes, device=facts, model=model,
            source=self._spec.model, with_lengths=goal.lengths is not None, on_this_machine=not facts.simulated,
        )  # fmt: skip
        return (
            self._space.refusal(candidate)
            or refusal(candidate, context)
            or self._lacks_room(candidate, model)
            or self._cannot_build(candidate, model)
        )

    def _lacks_room(self, candidate: Candidate, model: ModelFacts) -> str | None:
        """Return why host memory or disk cannot hold what the candidate offloads, or None."""
        goal = self._spec.goal
        needed = offloaded_bytes(candidate, model, goal.gpus, goal.nodes)
        place = candidate.offload_place(self._executor.facts.kind)
        room = self._executor.offload_room(self._folder, place) if needed else 0
        if needed <= room:
            return None
        where = "host memory" if place == "host" else f"the disk of {self._folder}"
        each = " for each rank" if goal.gpus > 1 else ""
        return f"offload needs {format_bytes(needed)} of {where}{each}, and only {format_bytes(room)} are free there"

    def _cannot_build(self, candidate: Candidate, model: ModelFacts) -> str | None:
        """Return why this machine cannot hold the model while it is built off its devices, or None.

        What is only simulated builds nothing.
        """
        facts, goal = self._executor.facts, self._spec.goal
        if facts.simulated:
            return None
        own, on_cpu, ranks = self._spec.model.source == "function", facts.kind == "cpu", goal.gpus
        needed = built_bytes(candidate, model, ranks, own, on_cpu)
        places: tuple[OffloadPlace, ...] = ("disk",) if on_cpu else ("host", "disk")  # in this order
        room = (
            sum(self._executor.offload_room(self._folder, place) for place in places) * ranks if needed else 0
        )
        if needed <= room:
            return None
        where = f"{'' if on_cpu else 'host memory and '}the disk of {self._folder}"
        each = " on every rank" if ranks > 1 and (own or candidate.engine == "deepspeed") else ""
        return (
            f"building the model{each} takes {format_bytes(needed)} of {where}, and only {format_bytes(room)} are free "
            "there; free some, or take a machine that has more"
        )
