"""Recorded grids made of arithmetic, for tests: named so, and never to be taken for measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from autotune.candidate import Candidate
from autotune.devices.recorded_grid import Conditions, GridHeader, GridLine, GridPoint, GridTrace, append_line
from autotune.options import Limits
from autotune.search.context import SearchContext
from autotune.search.space import Space
from autotune.site import MachineFacts, Site
from autotune.specs import DeviceFacts, DeviceSpeed, Goal, ModelFacts, ModelSpec
from autotune.testing.arithmetic import Arithmetic, timeline
from autotune.timeline.op_counts import KINDS, MATH_TYPES, OpCounts, Operators
from autotune.tracing.replay import packed

NAME = "arithmetic"
CONDITIONS = Conditions(time="", commit="", environment={}, load_before=0.0, load_after=0.0)
"""Nothing was measured, so under no conditions."""
FACTS = ModelFacts(
    task="causal-lm", model_class="Made", parameters=10, trainable_parameters=10, active_parameters=10, layers=1,
    hidden=1, block_class="Block", blocks=2, tokens_per_sample=64, torch_version="0", transformers_version="0",
)  # fmt: skip
START = 3.0
"""Seconds that a worker takes to start, in each probe and each trace."""
COLD = 5.0
"""Seconds that one takes that imports everything itself."""
SPEED = DeviceSpeed(
    matrix_flops={"fp32": 1e9},
    attention_flops={"fp32": 1e9},
    elementwise_flops=1e9,
    memory=1e9,
    operator=1e-9,
)
"""Of which only the memory matters: what a step takes are bytes that it moves."""
TRACE = 0.5
"""Seconds of each trace beyond that."""


def arithmetic_lines(
    device: Arithmetic,
    space: Space,
    *,
    target: str = "16 samples",
    model: ModelSpec | None = None,
    micro_batches: Sequence[int] | None = None,
    traced: bool = True,
) -> Iterable[GridLine]:
    """Yield the lines of a grid: every legal rung of a space, at the useful micro-batches, and the plain one at all.

    With `micro_batches` at these alone. A probe takes `START` seconds, and one for its steps if it trains.
    """
    facts = DeviceFacts(
        kind="cpu", name=NAME, torch_name="cpu", budget=device.budget, total=device.budget, dtypes=("bf16",)
    )
    site = Site(device=facts, machine=MachineFacts())
    goal = Goal.model_validate({"target": target, "seq_len": FACTS.tokens_per_sample, "headroom": 0.0})
    model = model or ModelSpec(name=NAME, source="config", config={})
    plain: dict[str, Any] = space.model_dump(mode="json")
    yield GridHeader(
        name=NAME, model=model, facts=FACTS, goal=goal, space=plain, site=site, minimum=1, baseline=0,
        speed=SPEED, cold_start_seconds=COLD, inspection_seconds=START,
        rooms={"host": 1 << 50, "disk": 1 << 50}, limits=Limits(), conditions=CONDITIONS,
    )  # fmt: skip
    context = SearchContext(
        space=space, base=Candidate(), goal=goal, tokens_per_sample=FACTS.tokens_per_sample, budget=device.budget,
        site=site, model=FACTS, source=model,
    )  # fmt: skip
    rungs = list(context.rungs())
    if traced:
        for rung in rungs:
            made = replace(timeline(device, rung), work=_work(device, rung))
            yield GridTrace(candidate=rung, seconds=TRACE, start_seconds=START, timeline=packed(made))
    batches = context.batches(Candidate())
    for rung, size in product(rungs, micro_batches or range(1, batches.limit + 1)):
        if micro_batches is None and rung != Candidate() and not batches.is_useful(size):
            continue
        outcome = device.outcome(rung.at(size))
        yield GridPoint(
            candidate=rung.at(size), accumulation_steps=batches.accumulation(size).steps, outcome=outcome,
            seconds=START + (1.0 if outcome.kind == "ok" else 0.0), start_seconds=START, build_seconds=0.0,
            conditions=CONDITIONS,
        )  # fmt: skip


def _work(device: Arithmetic, rung: Candidate) -> OpCounts:
    """Return work that the roofline prices as a probe measures it."""
    (one, step), (two, _) = device.times(rung.at(1)), device.times(rung.at(2))
    bytes_of = [round(seconds * SPEED.memory) for seconds in (2 * one - two, two - one, step)]
    host, none = KINDS.index("host"), MATH_TYPES.index("none")
    operators = Operators(
        name=["step", "update"], kind=[host] * 2, math=[none] * 2, ranks=[1] * 2, stride=[1] * 2, flops=[0] * 2,
        flops_slope=[0] * 2, bytes=[bytes_of[0], bytes_of[2]], bytes_slope=[bytes_of[1], 0],
    )  # fmt: skip
    return OpCounts(operators, micro={"forward": [(0, 1)]}, single=None, update={"optimizer": [(1, 1)]})


def write_grid(path: Path, lines: Iterable[GridLine]) -> Path:
    """Write lines to a file, and return its path."""
    for line in lines:
        append_line(path, line)
    return path
