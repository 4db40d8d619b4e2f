"""What measures the lines of a grid on one device: its header, its traces, its trials."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from autotune.candidate import Candidate
from autotune.devices.find import find
from autotune.devices.recorded_grid import Conditions, GridHeader, GridPoint, GridTrace, append_line
from autotune.environment import look_around
from autotune.executors.executor import Executor, ProbeResult
from autotune.executors.find import find_executor
from autotune.options import Limits
from autotune.probe.launch import Launcher
from autotune.probe.protocol import Inspection, ProbeRequest, Progress
from autotune.run.journal import now
from autotune.run.preflight import Preflight
from autotune.tracing.cache import TraceCache
from autotune.tracing.client import LocalTracer
from autotune.tracing.replay import packed
from benchmarks.grid_definitions import Definition
from benchmarks.grid_oracle import search_context
from benchmarks.verdict import unmeasured

ROOT = Path(__file__).parent.parent
LIMITS = Limits(sample_time=1.0, sample_steps=10, probe_timeout=300.0)
"""Of each trial: a run's own limits are longer, but so is a run's model."""


@dataclass(frozen=True)
class Recorder:
    """Measures on one device, for one file."""

    path: Path
    executor: Executor
    launcher: Launcher
    """What the executor launches with; traces are launched so too."""
    commit: str

    @classmethod
    def of(cls, definition: Definition, path: Path, launcher: Launcher) -> Recorder:
        """Return what measures a definition's trials."""
        device = definition.device_spec()
        executor = find_executor(device, LocalTracer(launcher=launcher), launcher=launcher)
        return cls(path, executor, launcher, commit())

    def conditions(self) -> Conditions:
        """Return what holds now; the load at the end is filled in later."""
        load = os.getloadavg()[0]
        return Conditions(
            time=now(),
            commit=self.commit,
            environment=look_around().environment(),
            load_before=load,
            load_after=load,
        )

    def measure(self, header: GridHeader, candidate: Candidate, round: int = 0) -> GridPoint:
        """Measure one trial and append it."""
        steps = search_context(header).batches(candidate).accumulation(candidate.micro_batch).steps
        seen: dict[str, float] = {}
        conditions, began = self.conditions(), time.monotonic()

        def note(progress: Progress) -> None:
            seen.setdefault(progress.phase, time.monotonic() - began)

        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recording-") as folder:
            finding = self.executor.run(
                request(header, candidate, "train", steps), Path(folder) / "probe",
                timeout=header.limits.probe_timeout, on_progress=note,
            )  # fmt: skip
        assert not isinstance(finding.answer, Inspection)
        build, forward = seen.get("build"), seen.get("forward")
        point = GridPoint(
            candidate=candidate, accumulation_steps=steps, round=round, outcome=finding.answer,
            seconds=finding.seconds, start_seconds=build,
            build_seconds=None if build is None or forward is None else forward - build,
            variables=finding.variables,
            conditions=conditions.model_copy(update={"load_after": os.getloadavg()[0]}),
        )  # fmt: skip
        append_line(self.path, point)
        return point


def request(header: GridHeader, candidate: Candidate, kind: str, steps: int = 1) -> ProbeRequest:
    """Return the request for a candidate at the grid's goal."""
    return ProbeRequest.model_validate(
        {
            "kind": kind, "model": header.model, "candidate": candidate, "seq_len": header.goal.seq_len,
            "accumulation_steps": steps, "device": header.site.device.torch_name,
            "budget": header.site.device.budget, "seed": header.seed,
            "sample_seconds": header.limits.sample_time, "sample_steps": header.limits.sample_steps, "folder": "",
        }
    )  # fmt: skip


def inspect(definition: Definition, executor: Executor, timeout: float) -> tuple[ProbeResult, float]:
    """Inspect a definition's model as a run does; return what came of it, and the seconds until its worker began."""
    model, goal, device = definition.model(), definition.goal(), executor.describe().device
    asked = ProbeRequest(
        kind="inspect", model=model, candidate=Candidate(), seq_len=goal.seq_len, accumulation_steps=1,
        device=device.torch_name, budget=device.budget, seed=0, sample_seconds=1, sample_steps=2, folder="",
        time_device=True,
    )  # fmt: skip
    seen, began = dict[str, float](), time.monotonic()

    def note(progress: Progress) -> None:
        seen.setdefault(progress.phase, time.monotonic() - began)

    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recording-") as folder:
        finding = executor.run(asked, Path(folder) / "inspection", timeout=timeout, on_progress=note)
    if not isinstance(finding.answer, Inspection):
        raise unmeasured("record_grid", f"{definition.name}: the model cannot be inspected: {finding.answer}")
    return finding, seen["build"]


def begin(definition: Definition, recorder: Recorder, limits: Limits) -> GridHeader:
    """Inspect the model, cold and as probes do, and return the first line of its grid."""
    device = find(definition.device_spec())
    site = recorder.executor.describe()
    conditions = recorder.conditions()
    model, goal = definition.model(), definition.goal()
    cold = find_executor(definition.device_spec(), LocalTracer())
    _, cold_start = inspect(definition, cold, limits.probe_timeout)
    finding, _ = inspect(definition, recorder.executor, limits.probe_timeout)
    assert isinstance(finding.answer, Inspection)
    rooms = {place: device.offload_room(Path.cwd(), place) for place in ("host", "disk")}
    return GridHeader.model_validate(
        {
            "name": definition.name, "model": model, "facts": finding.answer.facts, "goal": goal,
            "space": definition.space().model_dump(mode="json"), "site": site, "minimum": device.minimum(),
            "baseline": finding.baseline or 0, "speed": finding.answer.speed, "inspection_seconds": finding.seconds,
            "cold_start_seconds": cold_start, "rooms": rooms,
            "variables": device.environment(Candidate()), "limits": limits, "conditions": conditions,
        }
    )  # fmt: skip


def candidates(header: GridHeader, executor: Executor) -> list[Candidate]:
    """Return every trial of a grid, in the order in which they are measured: drawn, the same at every start."""
    context = search_context(header)
    preflight = Preflight(context, executor, Path.cwd())
    plain = context.space.plain(Candidate())
    found = []
    for rung in context.rungs():
        batches = context.batches(rung)
        sizes = range(1, batches.limit + 1) if rung == plain else batches.useful
        found += [rung.at(size) for size in sizes if preflight.refusal(rung.at(size)) is None]
    return Random(header.name).sample(found, len(found))


def trace(header: GridHeader, rungs: list[Candidate], cache: Path, launcher: Launcher) -> Iterator[GridTrace]:
    """Trace rungs together, and those whose trace holds for one micro-batch alone at every one that is of use.

    The wall time of a call, beyond the start of its first worker, is shared by all that it traced.
    """
    tracer, context = LocalTracer(TraceCache(cache), launcher), search_context(header)
    waiting = rungs
    while waiting:
        asked = request(header, waiting[0], "trace").model_copy(update={"also": tuple(waiting[1:])})
        began, first = time.monotonic(), _First()
        traces = tracer.trace(asked, cache / "worker", timeout=1800, on_progress=first)
        start = (first.heard or began) - began
        own = (time.monotonic() - began - start) / len(traces)
        waiting = []
        for one, made in traces.items():
            timeline = "" if made.timeline is None else packed(made.timeline)
            yield GridTrace(
                candidate=one, seconds=own, start_seconds=start, reason=made.reason, timeline=timeline
            )
            if made.timeline is not None and made.timeline.exact is not None and one == one.rung():
                waiting += [one.at(size) for size in context.batches(one).useful if size != one.micro_batch]


class _First:
    """When something was heard first."""

    heard: float | None = None

    def __call__(self, _: Progress) -> None:
        self.heard = self.heard or time.monotonic()


def commit() -> str:
    """Return the checked-out commit, with `+` where the code was changed since; empty without git."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no", "--", "autotune", "benchmarks/*.py"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{found}+" if changed else found
