"""Whole runs on arithmetic: a spec, a run of it from start to end, and one that foresees what probes will show."""

from __future__ import annotations

from pathlib import Path

from autotune.candidate import Candidate
from autotune.options import Limits
from autotune.probe.protocol import Progress
from autotune.run.best import Best
from autotune.run.folder import create_run
from autotune.run.loop import tune
from autotune.run.paths import RunPaths
from autotune.specs import DeviceSpec, Goal, ModelSpec, RunSpec
from autotune.techniques.families import title as title_of
from autotune.testing.arithmetic import Arithmetic, timeline
from autotune.tracing.client import Trace
from autotune.units import MIB
from tests.fakes.executor import ArithmeticExecutor
from tests.search.test_space import BASIC


def make_spec(space_text: str = BASIC, **limits) -> RunSpec:
    from autotune.search.space import Space

    return RunSpec(
        model=ModelSpec(name="made", source="config", config={}), device=DeviceSpec.parse("cpu:1GiB"),
        goal=Goal(target="6400", seq_len=100, headroom=0.0),
        space=Space.parse(space_text, "basic").model_dump(mode="json"), limits=Limits(**limits),
    )  # fmt: skip


def start(tmp_path: Path, executor: ArithmeticExecutor, **limits) -> tuple[Best, RunPaths]:
    spec = make_spec(**limits)
    paths = create_run(spec, tmp_path)
    return tune(spec, paths, executor), paths


class ArithmeticTracer:
    """Hands out the timelines of an arithmetic device, but for rungs that it is told to refuse."""

    def __init__(self, device: Arithmetic, untraceable: str = "") -> None:
        self.device = device
        self.untraceable = untraceable
        self.traced: list[Candidate] = []
        self.together: list[int] = []
        """How many rungs each request asked for."""

    def trace(self, request, folder, *, timeout, on_progress=None) -> dict[Candidate, Trace]:
        assert request.kind == "trace"
        wanted = (request.candidate, *request.also)
        if not request.evaluation:
            self.together.append(len(wanted))
            self.traced += [candidate.rung() for candidate in wanted]
        if on_progress is not None:
            on_progress(Progress(phase="start"))
        return {candidate: self._trace(candidate) for candidate in wanted}

    def _trace(self, candidate: Candidate) -> Trace:
        if title_of(candidate.rung()) == self.untraceable:
            return Trace(None, "operator x needs values; probe it instead", 1.0)
        return Trace(timeline(self.device, candidate), seconds=1.0)


BIG = Arithmetic(budget=1000).in_units(16 * MIB)


def foreseen(tmp_path, executor=None, tracer=None, **spec) -> tuple[Best, RunPaths, ArithmeticTracer]:
    tracer = tracer or ArithmeticTracer(BIG)
    made = make_spec().model_copy(update=spec)
    paths = create_run(made, tmp_path)
    return tune(made, paths, executor or ArithmeticExecutor(BIG), tracer=tracer), paths, tracer
