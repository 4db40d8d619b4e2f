"""What may be launched: why a candidate is refused before it costs a probe."""

from __future__ import annotations

from pathlib import Path

from autotune.candidate import Candidate, OffloadPlace
from autotune.executors.executor import Executor
from autotune.memory.host_footprint import built_bytes, offloaded_bytes, pinned_bytes
from autotune.search.context import SearchContext
from autotune.techniques.check import Refusal
from autotune.units import format_bytes


class Preflight:
    """Refuses what the space, the rules, the model, or the machine that probes run on rule out.

    The context knows its model and its site. `folder` is where probes would write.
    """

    def __init__(self, context: SearchContext, executor: Executor, folder: Path) -> None:
        assert context.model is not None
        assert context.source is not None
        assert context.site is not None
        self._context = context
        self._goal, self._model, self._device = context.goal, context.model, context.site.device
        self._commanded = context.source.command is not None
        self._own = context.source.source == "function"
        self._executor = executor
        self._folder = folder

    def refusal(self, candidate: Candidate) -> Refusal | None:
        """Return why a candidate is refused without running it, or None."""
        refused = self._context.refusal(candidate)
        if self._commanded:  # what it builds, and where it offloads to, is its own
            return refused
        return refused or self._lacks_room(candidate) or self._cannot_build(candidate)

    def _lacks_room(self, candidate: Candidate) -> Refusal | None:
        """Return why host memory or disk cannot hold what the candidate offloads, or None."""
        goal = self._goal
        place = candidate.offload_place(self._device.kind)
        needed = (pinned_bytes if place == "host" else offloaded_bytes)(
            candidate, self._model, goal.gpus, goal.nodes
        )
        room = self._executor.offload_room(self._folder, place) if needed else 0
        if needed <= room:
            return None
        where = "host memory" if place == "host" else f"the disk of {self._folder}"
        each = " for each rank" if goal.gpus > 1 else ""
        reason = f"offload needs {format_bytes(needed)} of {where}{each}, and only {format_bytes(room)} are free there"
        return Refusal("offload", "room", (), reason)

    def _cannot_build(self, candidate: Candidate) -> Refusal | None:
        """Return why the machine cannot hold the model while it is built off its devices, or None.

        What is only simulated builds nothing.
        """
        if self._device.simulated:
            return None
        on_cpu, ranks, goal = self._device.kind == "cpu", self._goal.gpus, self._goal
        # Ranks of the cpu device, and a disk, are this machine's or shared by all; host memory is each machine's own.
        building = ranks if on_cpu else ranks // goal.nodes
        needed = built_bytes(candidate, self._model, building, self._own, on_cpu)
        places: dict[OffloadPlace, int] = {"disk": ranks} if on_cpu else {"host": building, "disk": ranks}
        room = 0
        if needed:
            room = sum(self._executor.offload_room(self._folder, place) * of for place, of in places.items())
        if needed <= room:
            return None
        where = f"{'' if on_cpu else 'host memory and '}the disk of {self._folder}"
        each = " on every rank" if ranks > 1 and (self._own or candidate.engine == "deepspeed") else ""
        reason = (
            f"building the model{each} takes {format_bytes(needed)} of {where}, and only {format_bytes(room)} are free "
            "there; free some, or take a machine that has more"
        )
        return Refusal(None, "room", (), reason)
