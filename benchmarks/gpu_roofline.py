"""Steps of a GPU beside the roofline that predicts them: seconds of each engine, and what the data sheet allows."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from autotune.candidate import Candidate
from autotune.devices.hardware import Hardware
from autotune.specs import DeviceSpeed
from autotune.timeline.timeline import Timeline
from autotune.timing.machine import Machine
from autotune.timing.roofline import step_time

LINK = """
import json, time, torch
size = 256 << 20
here = torch.empty(size, dtype=torch.uint8, pin_memory=True)
there = torch.empty(size, dtype=torch.uint8, device="cuda:0")
def seconds(target, source):
    best = float("inf")
    for _ in range(8):
        torch.cuda.synchronize(); began = time.perf_counter()
        target.copy_(source, non_blocking=True); torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best
print(json.dumps({"upload": size / seconds(there, here), "download": size / seconds(here, there)}))
"""
"""Prints the bytes/s of copies from pinned memory to the first GPU, and back."""


def host_link(environment: dict[str, str], left: float) -> dict[str, float]:
    """Time copies between host and GPU in a process of its own. Raises CalledProcessError."""
    done = subprocess.run(
        [sys.executable, "-c", LINK],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=left,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def beside(timeline: Timeline, candidate: Candidate, hardware: Hardware, steps: int) -> dict[str, Any] | None:
    """Return the predicted seconds of each engine by stretch of a step, and `bound`: a global step at the data sheet.

    The bound is that of all engines at their peaks, each waiting for none. None where the trace does not tell.
    """
    assumed = step_time(timeline, candidate.micro_batch, Machine.of(hardware), steps > 1)
    peak = step_time(timeline, candidate.micro_batch, Machine.at_peak(hardware), steps > 1)
    if assumed is None or peak is None:
        return None
    engines = {name: getattr(assumed, name) for name in ("forward", "backward", "optimizer")}
    busiest = max(
        ("compute", "launch", "upload", "download", "host"),
        key=lambda engine: sum(getattr(one, engine) for one in engines.values()),
    )
    return {
        **{name: asdict(one) for name, one in engines.items()}, "busiest": busiest,
        "bound": peak.timing().global_step(steps),
    }  # fmt: skip


def shares(speed: DeviceSpeed, link: dict[str, float] | None, hardware: Hardware) -> dict[str, float]:
    """Return what single operators reach of the data sheet, as the roofline's constants do; a launch in seconds."""
    peaks = hardware.peak_flops()
    found = {
        "matrix": speed.matrix_flops["bf16"] / peaks.get("bf16", peaks["fp32"]),
        "attention": speed.attention_flops["bf16"] / peaks.get("bf16", peaks["fp32"]),
        "memory": speed.memory / (hardware.memory_gb_s * 1e9), "launch": speed.operator,
    }  # fmt: skip
    if link is not None:
        found["host_link"] = min(link.values()) / (hardware.host_gb_s * 1e9 / 2)
    return found
