"""Probes and traces on a cluster: each a job on a compute node, described by that node's facts.

The tuner may be on a login node without a device and without torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from autotune.candidate import Candidate, DeviceKind, OffloadPlace
from autotune.cluster import ClusterTarget
from autotune.devices.device import DeviceBusy
from autotune.devices.host import free_disk
from autotune.errors import InputError, NoDiskSpace, ProbeError
from autotune.executors.executor import ProbeResult
from autotune.executors.jobs import Jobs, log_tail, newest_job
from autotune.executors.orders import (
    Answer,
    Described,
    Failed,
    JobEnded,
    JobFolder,
    JobOrder,
    Probed,
    Traced,
    TracedCandidate,
)
from autotune.outcome import Lost, Oom, Outcome
from autotune.probe.protocol import ProbeRequest, Progress
from autotune.site import Site
from autotune.specs import DeviceSpec
from autotune.timeline.timeline import Timeline
from autotune.tracing.cache import TraceCache
from autotune.tracing.client import Trace
from autotune.trial import TRIES

DESCRIBING = 300.0
"""Seconds that a node gets to say what it is."""


class Sites:
    """What partitions were described as, so that the runs of a sweep ask each of them once. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Described] = {}
        self._asking: dict[str, threading.Lock] = {}

    def get(self, key: str, ask: Callable[[], Described]) -> Described:
        """Return what is known of a key; `ask` finds out, once."""
        with self._lock:
            asking = self._asking.setdefault(key, threading.Lock())
        with asking:
            if key not in self._known:
                self._known[key] = ask()
            return self._known[key]


class ClusterExecutor:
    """Runs each request as a job in one partition of a cluster."""

    def __init__(
        self,
        target: ClusterTarget,
        jobs: Jobs,
        device: DeviceSpec,
        root: Path,
        gpus: int = 1,
        nodes: int = 1,
        sites: Sites | None = None,
    ) -> None:
        """`root` is the run's folder, in the one that the cluster shares; `sites` may know the partition already."""
        self._target = target
        self._jobs = jobs
        self._device = device
        self._root = root
        self._gpus, self._nodes = gpus, nodes
        self._sites = sites or Sites()

    def describe(self) -> Site:
        """Return the device and machine of a node, from a job there; a start of the tuner asks once."""
        return self._described().site

    def offload_room(self, folder: Path, place: OffloadPlace) -> int:
        """Return what each rank has of the shared disk, as seen from here, or of the host memory of a node's job."""
        return free_disk(folder) // self._gpus if place == "disk" else self._described().host_room

    def run(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ProbeResult:
        """Submit, wait and join the verdict with how the job ended; `timeout` begins on the node, not in the queue.

        Raises ProbeError where the node's program could not be started, and what the probe raised there.
        """
        order = self._order("probe", timeout, request.model_copy(update={"folder": ""}))
        answer = self._jobs.ask(order, folder, on_progress)
        if isinstance(answer, Probed):
            return answer.result
        return ProbeResult(
            answer=verdict(answer, newest_job(folder), self.describe().device.kind), seconds=0.0
        )

    def _described(self) -> Described:
        order = self._order("describe", DESCRIBING)
        key = f"{self._target.model_dump_json()} {order.digest()}"
        return self._sites.get(key, lambda: self._ask_description(order))

    def _ask_description(self, order: JobOrder) -> Described:
        folder = self._root / "site"
        for _ in range(TRIES):
            answer = self._jobs.ask(order, folder, fresh=True)
            if isinstance(answer, Described):
                return answer
            lost = verdict(answer, newest_job(folder), "cpu")
        message = lost.message if isinstance(lost, Lost | Oom) else str(lost)
        raise ProbeError(f"no node of partition {self._target.name} could be described: {message}")

    def _order(self, kind: str, timeout: float, request: ProbeRequest | None = None) -> JobOrder:
        return JobOrder.model_validate(
            {
                "kind": kind, "device": self._device, "gpus": self._gpus, "nodes": self._nodes, "request": request,
                "timeout": self._target.limited(timeout), "traces": str(self._target.traces),
            }
        )  # fmt: skip


class ClusterTracer:
    """Traces in jobs, whose cache lies in the cluster's shared folder; what a run has traced it keeps beside itself."""

    def __init__(self, target: ClusterTarget, jobs: Jobs, device: DeviceSpec) -> None:
        self._target = target
        self._jobs = jobs
        self._device = device

    def trace(
        self,
        request: ProbeRequest,
        folder: Path,
        *,
        timeout: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> dict[Candidate, Trace]:
        """Have one job trace what the run has not traced before."""
        kept = TraceCache(folder / "kept")
        wanted = tuple(dict.fromkeys((request.candidate, *request.also)))
        found: dict[Candidate, Trace] = {}
        for candidate in wanted:
            if (timeline := kept.find(_of(request, candidate))) is not None:
                found[candidate] = Trace(timeline, cached=True)
        missing = [candidate for candidate in wanted if candidate not in found]
        if missing:
            found |= self._traced(request, missing, folder, timeout, on_progress)
            for candidate in missing:
                if (timeline := found[candidate].timeline) is not None:
                    kept.keep(_of(request, candidate), timeline)
        return {candidate: found[candidate] for candidate in wanted}

    def _traced(
        self,
        request: ProbeRequest,
        candidates: Sequence[Candidate],
        folder: Path,
        timeout: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> dict[Candidate, Trace]:
        first, *rest = candidates
        asked = request.model_copy(
            update={"kind": "trace", "folder": "", "candidate": first, "also": tuple(rest)}
        )
        order = JobOrder(
            kind="trace", device=self._device, request=asked, timeout=self._target.limited(timeout),
            traces=str(self._target.traces),
        )  # fmt: skip
        for _ in range(TRIES):  # what ended a job from outside says nothing of the trace
            answer = self._jobs.ask(order, folder, on_progress)
            if isinstance(answer, Traced):
                job = newest_answer(folder, order)
                return {one.candidate: _read(job, one) for one in answer.traces}
            outcome = verdict(answer, newest_job(folder), "cpu")
            if not isinstance(outcome, Lost):
                break
        lost = outcome if isinstance(outcome, Lost) else None
        reason = outcome.message if isinstance(outcome, Lost | Oom) else f"tracing ended with {outcome.kind}"
        return dict.fromkeys(candidates, Trace(None, f"tracing was ended: {reason}", lost=lost))


def verdict(ended: Answer | JobEnded, job: JobFolder | None, kind: DeviceKind) -> Outcome:
    """Return what a probe came to whose job left no result, by how the scheduler says that it ended.

    Memory is the only verdict on the candidate. All else is Lost: a node that failed, a job that somebody cancelled or
    that lost its place to another, or that ran into the scheduler's limit, which is set beyond the probe's own
    deadline. Raises what the node's work raised, and ProbeError where its program never began.
    """
    if isinstance(ended, Failed):
        _raise(ended)
    if not isinstance(ended, JobEnded):
        raise ProbeError(f"a job answered {ended.kind!r}, which is not what it was asked for")
    phase, why = ended.phase, f" ({ended.why})" if ended.why else ""
    where = f" on {', '.join(ended.nodes)}" if ended.nodes else ""
    match ended.end:
        case "memory":
            # On the cpu device the machine's memory is the device's; under CUDA it is the host's.
            place = "device" if kind == "cpu" else "host"
            message = f"the scheduler killed the job{where} because it took more host memory than it was granted{why}"
            return Oom.model_validate({"where": place, "phase": phase, "message": message})
        case "completed" | "failed" if not ended.started:
            said = log_tail(job) if job is not None else ""
            raise ProbeError(
                f"the job{where} ended before the node's program began{why}: {said or 'it wrote nothing'}. Look at "
                "`python`, `setup` and `environment` of the cluster file"
            )
        case "completed" | "failed":
            cause, message = (
                "node",
                f"the node's program{where} was killed, by something other than autotune{why}",
            )
        case "node":
            cause, message = "node", f"the node failed{where}{why}"
        case "cancelled":
            cause, message = "scheduler", f"the job{where} was cancelled{why}"
        case "preempted":
            cause, message = "scheduler", f"the job{where} had to make room for others, time and again{why}"
        case "time limit":
            cause, message = "scheduler", f"the scheduler ended the job{where} at its time limit{why}"
        case "gone":
            cause, message = "scheduler", f"nothing is known of the job{where}{why}"
    return Lost.model_validate({"cause": cause, "phase": phase, "message": message})


def _raise(failed: Failed) -> NoReturn:
    match failed.error:
        case "input":
            raise InputError(failed.message)
        case "device busy":
            raise DeviceBusy(failed.message, failed.processes)
        case "no disk space":
            raise NoDiskSpace(failed.message)
        case "probe":
            raise ProbeError(failed.message)
        case "internal":
            raise ProbeError(f"the node's program failed: {failed.message}\n{failed.traceback}".strip())


def newest_answer(folder: Path, order: JobOrder) -> JobFolder:
    """Return the newest attempt at an order that was answered."""
    return next(
        job
        for job in reversed(JobFolder.existing(folder.absolute()))
        if job.answer.exists() and job.read_order() == order
    )


def _read(job: JobFolder, traced: TracedCandidate) -> Trace:
    timeline = None
    if traced.file:
        try:
            timeline = Timeline.unpack((job.root / traced.file).read_bytes())
        except (OSError, InputError) as error:
            return Trace(None, f"the trace cannot be read: {error}")
    return Trace(
        timeline, traced.reason, traced.seconds, refused=traced.refused, lost=traced.lost, cached=traced.cached,
        composed=traced.composed,
    )  # fmt: skip


def _of(request: ProbeRequest, candidate: Candidate) -> ProbeRequest:
    return request.model_copy(update={"candidate": candidate})
