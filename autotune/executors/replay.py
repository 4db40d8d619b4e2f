"""Probes answered from a recorded grid: the outcome that was measured, at the cost in seconds that it had.

So a whole run takes no longer than its decisions do, and the same run comes to the same end every time. What the grid
does not hold is an error and never a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autotune.candidate import Candidate, OffloadPlace
from autotune.devices.recorded_grid import GridPoint, NotRecorded
from autotune.devices.replay import ReplayDevice
from autotune.executors.executor import ProbeResult
from autotune.outcome import Unsupported
from autotune.probe.protocol import Inspection, ProbeRequest, Progress
from autotune.site import Site
from autotune.specs import Goal
from autotune.techniques.families import title as title_of


class ReplayExecutor:
    """Answers requests of the kinds `inspect` and `train` from a grid; proves nothing, because nothing runs."""

    def __init__(self, device: ReplayDevice) -> None:
        self._device = device
        self._grid = device.grid

    def describe(self) -> Site:
        """Return the recorded device and machine; the device says that it is replayed."""
        return self._grid.header.site.model_copy(update={"device": self._device.facts()})

    def environment(self, candidate: Candidate) -> dict[str, str]:
        """Return the environment variables that the candidate was measured under."""
        return self._device.environment(candidate)

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:
        """Return the bytes that were free when the grid was begun."""
        return self._device.offload_room(folder, place)

    def run(
        self,
        request: ProbeRequest,
        folder: Path,  # noqa: ARG002  nothing is written
        *,
        timeout: float,  # noqa: ARG002  nothing is waited for
        on_progress: Callable[[Progress], None] | None = None,  # noqa: ARG002  nothing happens
    ) -> ProbeResult:
        """Return what was recorded. Raises NotRecorded for a model, a goal or a candidate that was not."""
        header = self._grid.header
        if request.kind == "prove":
            reason = (
                f"a replay of {self._grid.source} proves nothing; run `autotune verify` on the device itself"
            )
            return ProbeResult(answer=Unsupported(reason=reason), seconds=0.0)
        goal = Goal(target=header.goal.target, seq_len=request.seq_len, lengths=request.lengths,
                    gpus=header.goal.gpus, nodes=header.goal.nodes)  # fmt: skip
        if problems := self._grid.mismatch(request.model, goal):
            raise NotRecorded(problems)
        if request.kind == "inspect":
            return ProbeResult(
                answer=Inspection(facts=header.facts, speed=header.speed if request.time_device else None),
                baseline=header.baseline,
                seconds=header.inspection_seconds,
            )
        point = self._point(request)
        return ProbeResult(
            answer=point.outcome,
            baseline=header.baseline,
            seconds=point.seconds,
            variables=dict(point.variables),
        )

    def _point(self, request: ProbeRequest) -> GridPoint:
        candidate, asked = request.candidate, request.accumulation_steps
        named = f"{title_of(candidate)}, micro-batch {candidate.micro_batch}"
        point = self._grid.points.get(candidate)
        if point is None:
            sizes = sorted(one.micro_batch for one in self._grid.points if one.rung() == candidate.rung())
            held = (
                f"of that rung micro-batches {', '.join(map(str, sizes))}"
                if sizes
                else "nothing of that rung"
            )
            raise NotRecorded(
                f"{self._grid.source} holds no trial of {named}: it holds {held}, and a replay never guesses. Search "
                f"the space that was recorded (leave --space out), or record the trial\n{candidate.key()}"
            )
        if point.accumulation_steps != asked:
            raise NotRecorded(
                f"{self._grid.source} holds {named} with {point.accumulation_steps} micro-steps a global step, and "
                f"not with {asked}: its global batch is {self._grid.header.goal.target}"
            )
        return point
