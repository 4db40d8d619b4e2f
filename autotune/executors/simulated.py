"""Probes of a GPU that is not there: answered from traces, the simulated caching allocator and the roofline.

Every answer is a prediction. It carries the verdicts of a probe, so that the whole loop runs on it, and the facts of
the device say `simulated`, so that nothing that follows is called measured. What a probe would find beside memory and
time (a loss that is not finite, a crash of a kernel) is not predicted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from autotune.candidate import Candidate, OffloadPlace
from autotune.devices.simulated import SimulatedDevice
from autotune.executors.executor import ProbeResult
from autotune.memory.allocator import OutOfDeviceMemory
from autotune.memory.device_overhead import CUDA_CONTEXT
from autotune.memory.predictor import breakdown
from autotune.memory.reserved import allocator_usage
from autotune.outcome import Lost, Memory, Ok, Oom, Outcome, Phase, PhaseReport, Unsupported
from autotune.probe.classify import classify
from autotune.probe.folder import ProbeFolder
from autotune.probe.launch import Launcher, launch
from autotune.probe.protocol import Inspection, ProbeRequest, Progress
from autotune.site import Site
from autotune.techniques.check import this_machine
from autotune.timeline.timeline import Timeline
from autotune.timing.calibration import SpeedCalibration
from autotune.timing.machine import Machine
from autotune.timing.roofline import StepTime, step_time
from autotune.tracing.client import Tracer


class SimulatedExecutor:
    """Answers requests of kind `train` by prediction; the model is inspected for real, on the processor."""

    def __init__(self, device: SimulatedDevice, tracer: Tracer, launcher: Launcher = launch) -> None:
        self._device = device
        self._tracer = tracer
        self._launch = launcher
        self._machine = Machine.of(device.hardware)
        self._timelines: dict[Candidate, Timeline | str] = {}

    def describe(self) -> Site:
        """Return the GPU that is not there, and this machine, which traces."""
        return Site(device=self._device.facts(), machine=this_machine())

    def environment(self, candidate: Candidate) -> dict[str, str]:
        """Return the environment variables that a probe of this candidate would run under."""
        return self._device.environment(candidate)

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:
        """Return the bytes of host memory or disk that offloading is assumed to have."""
        return self._device.offload_room(folder, place)

    def run(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ProbeResult:
        """Inspect in a worker; trace in one, where that was not done before, and price."""
        began = time.monotonic()
        if request.kind == "inspect":
            return self._inspect(request, ProbeFolder(folder), timeout, on_progress)
        if request.kind == "prove":
            name = self._device.facts().name
            reason = f"{name} proves nothing; run `autotune verify` on a machine that has such a GPU"
            return ProbeResult(answer=Unsupported(reason=reason, cause="device"), seconds=0.0)
        timeline = self._timeline(request, folder, timeout, on_progress)
        outcome: Outcome
        match timeline:
            case Lost():
                outcome = timeline
            case str():
                outcome = Unsupported(reason=timeline)
            case _:
                outcome = self._price(request, timeline)
        return ProbeResult(
            answer=outcome, baseline=CUDA_CONTEXT, seconds=time.monotonic() - began,
            variables=self.environment(request.candidate),
        )  # fmt: skip

    def _inspect(
        self,
        request: ProbeRequest,
        place: ProbeFolder,
        timeout: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> ProbeResult:
        request = request.model_copy(update={"device": "cpu", "folder": str(place.scratch)})
        try:
            report = self._launch(
                request, place, environment=self.environment(request.candidate), data_limit=None,
                timeout=timeout, on_progress=on_progress,
            )  # fmt: skip
        finally:
            place.clear_scratch()
        answer = report.answer
        if not isinstance(answer, Inspection):
            return ProbeResult(answer=classify(request, report, kind="cpu"), seconds=report.seconds)
        return ProbeResult(answer=answer, baseline=0, seconds=report.seconds)  # nothing was taken of the GPU

    def _timeline(
        self,
        request: ProbeRequest,
        folder: Path,
        timeout: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> Timeline | Lost | str:
        """Return the timeline of the request's rung, or why there is none; a trace that was lost may be made later."""
        candidate = request.candidate
        for known in (candidate, candidate.rung()):
            if known in self._timelines:
                return self._timelines[known]
        trace = self._tracer.trace(request, folder, timeout=timeout, on_progress=on_progress)[candidate]
        if trace.lost is not None:
            return trace.lost
        if trace.timeline is None:
            found: Timeline | str = f"{trace.reason} (a simulated GPU has nothing but traces)"
        elif trace.timeline.work is None:
            found = "its trace holds no work to time"
        else:
            found = trace.timeline
        exact = isinstance(found, Timeline) and found.exact is not None
        self._timelines[candidate if exact else candidate.rung()] = found
        return found

    def _price(self, request: ProbeRequest, timeline: Timeline) -> Outcome:
        candidate = request.candidate
        accumulating = request.accumulation_steps > 1
        overhead = self._device.hardware.overhead(request.world_size)
        held = overhead.held(candidate)
        try:
            usage = allocator_usage(timeline,
                candidate.micro_batch, accumulating, candidate.expandable_segments,
                max_split_size=candidate.max_split_size_bytes,
                capacity=request.budget - held, device_memory=overhead.device_memory,
                blas_workspace=overhead.blas_workspace,
            )  # fmt: skip
        except OutOfDeviceMemory as refused:
            return _refused(refused, held)
        peak = timeline.peak(candidate.micro_batch, accumulating, blas_workspace=overhead.blas_workspace)
        step = step_time(timeline, candidate.micro_batch, self._machine, accumulating)
        assert step is not None, "a timeline with work, at a micro-batch that it covers"
        return Ok(
            memory=Memory(
                allocated=usage.allocated_peak, reserved=usage.reserved_peak,
                device_peak=usage.reserved_peak + held, budget=request.budget,
                baseline=held,
                breakdown=breakdown(peak),
            ),
            timing=SpeedCalibration().correct(candidate.rung().key(), step.timing()),
            communication=step.communication() if request.world_size > 1 else None,
            phases=_phases(timeline, candidate.micro_batch, accumulating, step),
            losses=(),
            accumulation_steps=min(2, request.accumulation_steps),
            attention=str(timeline.facts.get("attention") or "") or None,
            attention_kernels=timeline.attention_kernels,
        )  # fmt: skip


def _refused(error: OutOfDeviceMemory, baseline: int) -> Oom:
    assert error.phase is not None, "a timeline says where it was"
    return Oom(
        phase=error.phase, requested=error.requested, free=error.capacity - error.reserved,
        message=f"predicted: {error} ({baseline} B of CUDA's context and NCCL's buffers aside)",
    )  # fmt: skip


def _phases(
    timeline: Timeline, micro_batch: int, accumulating: bool, step: StepTime
) -> tuple[PhaseReport, ...]:
    """Return time and memory of the last step's phases."""
    levels: dict[Phase, list[int]] = {}
    for phase, number, bytes_ in timeline.curve(micro_batch, accumulating):
        if number == 2:
            levels.setdefault(phase, []).append(bytes_)
    seconds = {
        "forward": step.last_forward.seconds, "backward": step.last_backward.seconds,
        "optimizer": step.optimizer.seconds,
    }  # fmt: skip
    return tuple(
        PhaseReport(phase=phase, seconds=seconds[phase], peak=max(taken), end=taken[-1])
        for phase, taken in levels.items()
    )
