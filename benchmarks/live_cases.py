"""The cases of live runs, each under a budget that suits the machine at hand.

What a process holds before there is a model differs by machine and by the versions of its libraries, by more than
such small models take. So a budget is not a number: it is what the plain rung at a few samples is predicted to take.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.candidate import Candidate
from autotune.probe.warm import WarmLauncher
from autotune.units import MIB
from benchmarks.grid_definitions import LIVE, SMALLEST, Definition
from benchmarks.grid_plan import budget_for
from benchmarks.grid_recorder import LIMITS, Recorder, begin, trace

SAMPLES = 2
"""Of the largest micro-batch of the plain rung that leaves the headroom, of eight that a step takes."""


NO_LIMIT = "cpu:1GiB"
"""More than any of them takes: what the plain rung is traced under, before there is a budget."""


def cases(names: Sequence[str] | None, smallest: bool = False) -> Iterator[Definition]:
    """Return the live cases of these names (all where there are none), each under its budget; or the smallest case."""
    if smallest:
        yield SMALLEST
        return
    for definition in LIVE:
        if not names or definition.name in names:
            yield under_budget(definition)


def under_budget(definition: Definition) -> Definition:
    """Return a case whose plain rung is predicted to fit at `SAMPLES` samples, and not at many more.

    The rung is traced for that, in a process of its own; nothing trains.
    """
    roomy, plain = replace(definition, device=NO_LIMIT), definition.space().plain(Candidate())
    with (
        WarmLauncher() as launcher,
        tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recording-") as cache,
    ):
        header = begin(roomy, Recorder.of(roomy, Path(os.devnull), launcher), LIMITS)
        traces = {line.candidate: line for line in trace(header, [plain], Path(cache), launcher)}
    return replace(definition, device=f"cpu:{budget_for(header, traces, plain.at(SAMPLES)) // MIB}MiB")
