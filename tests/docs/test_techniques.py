"""What the benchmark of techniques predicts of a GPU is what a probe there counts: cuBLAS's workspaces too."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.candidate import Candidate
from autotune.devices.hardware import find_hardware
from autotune.devices.simulated import SimulatedDevice
from autotune.executors.simulated import SimulatedExecutor
from autotune.models.resolve import resolve
from autotune.site import Site
from autotune.tracing.cache import TraceCache
from autotune.tracing.client import LocalTracer
from benchmarks.techniques import OnGpu

HARDWARE = find_hardware("h200-sxm-141gb")


class AsTheDriverSays(SimulatedExecutor):
    """A GPU that counts as torch does on CUDA, under its driver's name."""

    def describe(self) -> Site:
        site = super().describe()
        return site.model_copy(update={"device": site.device.model_copy(update={"name": "NVIDIA H200"})})


def test_a_peak_is_compared_with_one_that_has_the_same_workspaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tracer = LocalTracer(TraceCache(tmp_path / "cache"))
    measure = OnGpu.__new__(OnGpu)
    measure.executor = AsTheDriverSays(SimulatedDevice(HARDWARE), tracer)
    measure.tracer = tracer
    row = measure(resolve("tiny-gpt2", base=tmp_path), 64, Candidate(micro_batch=2))
    assert row["verdict"] == "ok"
    assert row["predicted"] == row["measured"]
    assert row["predicted"] > 2 * HARDWARE.cublas_bytes(), "one for each thread: most of so small a model"
