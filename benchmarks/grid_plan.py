"""What the models of memory and speed expect of a grid before it is recorded. Pure."""

from __future__ import annotations

import math
import statistics
from functools import partial

from autotune.candidate import Candidate
from autotune.devices.recorded_grid import GridHeader, GridTrace
from autotune.memory.device_overhead import DeviceOverhead
from autotune.memory.predictor import Predictor
from autotune.outcome import StepTiming
from autotune.search.context import SearchContext
from autotune.timing.machine import Machine
from autotune.timing.step_predictor import StepPredictor
from autotune.tracing.replay import unpacked
from autotune.units import MIB
from benchmarks.grid_oracle import search_context, told

BESIDE = 0.6
"""Seconds of a warm trial beside its steps, about: fork, build and end."""


def memory_model(header: GridHeader, traces: dict[Candidate, GridTrace]) -> Predictor:
    """Return what is known of memory before anything was measured."""
    overhead = DeviceOverhead.measured(
        header.site.device.kind, header.baseline, device_memory=header.site.device.total
    )
    predictor = Predictor({}, overhead, partial(_accumulates, search_context(header)))
    for one, line in traces.items():
        if line.timeline:
            predictor = predictor.with_timeline(one, unpacked(line.timeline, header.name))
    return predictor


def _accumulates(context: SearchContext, one: Candidate) -> bool:
    return context.batches(one).accumulation(one.micro_batch).steps > 1


def budget_for(header: GridHeader, traces: dict[Candidate, GridTrace], candidate: Candidate) -> int:
    """Return the budget (bytes, whole MiB) of which a traced candidate is predicted to leave the headroom, and no more.

    Raises KeyError where it was not traced.
    """
    bounds = memory_model(header, {candidate.rung(): traces[candidate.rung()]}).bounds(candidate)
    if bounds is None:
        raise KeyError(candidate.key())
    return math.ceil(bounds.mean / (1 - header.goal.headroom) / MIB) * MIB


def expected(
    header: GridHeader, traces: dict[Candidate, GridTrace], trials: list[Candidate]
) -> tuple[dict[Candidate, int], dict[Candidate, StepTiming]]:
    """Return the peaks (bytes) and step times that the models expect, of trials that they can price."""
    predictor = memory_model(header, traces)
    peaks = {one: round(bounds.mean) for one in trials if (bounds := predictor.bounds(one)) is not None}
    if header.speed is None:
        return peaks, {}
    speed = StepPredictor(
        predictor, Machine.measured(header.speed), partial(_accumulates, search_context(header))
    )
    return peaks, {one: timing for one in peaks if (timing := speed.timing(one)) is not None}


def planned(
    header: GridHeader, traces: dict[Candidate, GridTrace], trials: list[Candidate], again: int
) -> dict[str, str]:
    """Return what the models expect of a grid, as a table shows it; `again` is how many more trials the best ones get.

    Seconds are those of a machine as quiet as when its speed was timed, and no more than an estimate.
    """
    peaks, timings = expected(header, traces, trials)
    context, budget = search_context(header), header.site.device.budget
    plain = context.space.plain(Candidate())

    def seconds(one: Candidate) -> float:
        return timings[one].global_step(context.batches(one).accumulation(one.micro_batch).steps)

    def cost(one: Candidate) -> float:
        if peaks[one] > budget or one not in timings:
            return BESIDE
        steps, timing = context.batches(one).accumulation(one.micro_batch).steps, timings[one]
        step = (min(steps, 2) - 1) * timing.micro_step.mean + timing.last_micro_step.mean
        step += timing.optimizer_step.mean
        return BESIDE + step + max(3 * step, min(header.limits.sample_time, 10 * step))

    fitting = sorted((one for one in timings if peaks[one] <= context.usable), key=seconds)
    over = sum(peak > budget for peak in peaks.values())
    whole = sum(line.seconds for line in traces.values()) + header.inspection_seconds
    whole += sum(map(cost, peaks)) + (again * statistics.fmean(map(cost, fitting[:10])) if fitting else 0.0)
    plainly = [one.micro_batch for one in peaks if one.rung() == plain and peaks[one] <= context.usable]
    return {
        "OOM": f"{over / max(1, len(peaks)):.0%} of {len(peaks)}",
        "plain fits at": ", ".join(map(str, sorted(plainly))) or "none",
        "fastest": told(fitting[0]) if fitting else "none",
        "plain wins": str(bool(fitting) and fitting[0].rung() == plain),
        "about": f"{whole:.0f} s",
        "smallest": f"{min(peaks.values()) >> 20} MiB", "largest": f"{max(peaks.values()) >> 20} MiB",
        "peaks": " ".join(str(peak >> 20) for peak in sorted(peaks.values())),
    }  # fmt: skip
