"""What a worker does on CUDA, with the functions of `torch.cuda` scripted: no GPU is needed."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autotune.candidate import Candidate
from autotune.outcome import Crash, Ok
from autotune.probe.protocol import ProbeRequest, Result
from autotune.specs import ModelSpec
from autotune.units import GIB, MIB
from autotune.worker.__main__ import Probe
from autotune.worker.build import assembly
from autotune.worker.build.composition import _set_precision
from autotune.worker.measuring import prove
from autotune.worker.measuring.memory_meter import CudaMeter, Lap, Peaks
from autotune.worker.measuring.oom_snapshot import SNAPSHOT, SUMMARY, CudaWitness
from autotune.worker.measuring.steps import Stepper
from autotune.worker.techniques.sharding.process_group import form_group
from tests.worker.test_steps import make

CUDA = torch.device("cuda:0")
STICKY = "CUDA error: device-side assert triggered"


def test_a_garbage_collection_threshold_gives_the_process_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append(share)
    )
    candidate = Candidate(precision="fp32", garbage_collection_threshold="80%")
    draft: Any = SimpleNamespace(request=SimpleNamespace(candidate=candidate), device=torch.device("cuda:0"))
    _set_precision(draft)
    assert 1 - 1e-12 < shares[0] < 1.0  # 1.0 takes the limit away that the collection looks at


def test_a_sticky_error_is_judged_although_cuda_answers_no_more(tmp_path: Any) -> None:
    def gone() -> int:
        raise torch.AcceleratorError(STICKY)

    request: Any = SimpleNamespace(device="cuda:0", folder=str(tmp_path), budget=2**30, kind="train")
    probe = Probe(request, SimpleNamespace(progress=lambda phase, step: None))  # type: ignore[arg-type]
    probe._phases._meter = SimpleNamespace(free=gone)  # type: ignore[assignment]
    outcome = probe._judge(torch.AcceleratorError(STICKY))
    assert isinstance(outcome, Crash)
    assert STICKY in outcome.message


def test_evidence_of_a_refusal_that_was_survived_is_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **options: None)
    monkeypatch.setattr(torch.cuda, "memory_summary", lambda device: "page")
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: Path(path).touch())
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", lambda seen: None, raising=False)
    witness = CudaWitness(torch.device("cuda:0"), tmp_path)
    witness._refused(0, 2**30, 2**20, 2**10)
    assert {path.name for path in tmp_path.iterdir()} == {SUMMARY, SNAPSHOT}
    witness.discard()
    assert not list(tmp_path.iterdir())
    witness.discard()


def test_one_rank_alone_asks_no_network_for_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(
        dist, "init_process_group", lambda *_, **__: seen.append(os.environ.get("GLOO_SOCKET_IFNAME"))
    )
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    form_group(CUDA, 1)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    form_group(CUDA, 1)
    assert seen == ["lo", "eth7"]


class Driver:
    """`torch.cuda` as a meter asks it: an allocator's counters, and a GPU on which another process holds 1 GiB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nvml: bool = True) -> None:
        self.allocated = self.reserved = self.peak = self.reserved_peak = self.retries = self.context = 0
        self.nvml = nvml
        self.waits = 0
        answers = {
            "device_memory_used": self._used, "synchronize": self._wait, "memory_stats": self._stats,
            "memory_reserved": lambda device: self.reserved, "memory_allocated": lambda device: self.allocated,
            "reset_peak_memory_stats": self._reset, "mem_get_info": lambda device: (80 * GIB - self._held(), 80 * GIB),
        }  # fmt: skip
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        monkeypatch.setattr(torch, "zeros", self._first)

    def take(self, tensors: int, cached: int | None = None) -> None:
        """Allocate, and cache so much as the most that is reserved."""
        self.allocated += tensors
        self.reserved = max(self.reserved, self.allocated if cached is None else cached)
        self.peak, self.reserved_peak = max(self.peak, self.allocated), max(self.reserved_peak, self.reserved)

    def _first(self, *size: int, device: torch.device) -> None:
        self.context = 500 * MIB
        self.take(512, 2 * MIB)

    def _held(self) -> int:
        return GIB + self.context + self.reserved

    def _used(self, device: torch.device) -> int:
        if not self.nvml:
            raise RuntimeError("Driver/library version mismatch")
        return self._held()

    def _wait(self, device: torch.device) -> None:
        self.waits += 1

    def _stats(self, device: torch.device) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": self.allocated, "allocated_bytes.all.peak": self.peak,
            "reserved_bytes.all.peak": self.reserved_peak, "num_alloc_retries": self.retries,
        }  # fmt: skip

    def _reset(self, device: torch.device) -> None:
        self.peak, self.reserved_peak = self.allocated, self.reserved


def test_a_meter_counts_its_own_process_beside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    meter = CudaMeter(CUDA)
    assert (meter.baseline, meter.taken) == (500 * MIB, 500 * MIB)
    driver.take(3 * GIB, cached=4 * GIB)
    driver.allocated -= 2 * GIB
    assert meter.lap() == Lap(end=GIB + 512, peak=3 * GIB + 512)
    assert meter.lap() == Lap(end=GIB + 512, peak=GIB + 512)
    driver.retries = 2
    assert meter.peaks() == Peaks(reserved=4 * GIB, device=4 * GIB + 500 * MIB, allocator_retries=2)
    assert meter.free() == 80 * GIB - GIB - 500 * MIB - 4 * GIB


def test_a_section_has_a_peak_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    meter = CudaMeter(CUDA)
    driver.take(3 * GIB, cached=6 * GIB)
    assert meter.section() == 6 * GIB + 500 * MIB
    driver.allocated, driver.reserved = GIB, 2 * GIB  # the cache was emptied
    driver._reset(CUDA)
    assert meter.section() == 2 * GIB + 500 * MIB
    assert meter.peaks().device == 6 * GIB + 500 * MIB, "of the process's whole life"


def test_a_meter_without_nvml_knows_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, nvml=False)
    meter = CudaMeter(CUDA)
    driver.take(3 * GIB)
    assert meter.baseline == 0
    assert meter.peaks().device == GIB + 500 * MIB + driver.reserved, (
        "what the driver calls used, others included"
    )
    meter.synchronize()
    assert driver.waits == 2
    assert meter.now() == 3 * GIB + 512


def test_the_observer_notes_the_very_request_that_was_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    histories: list[dict[str, Any]] = []
    observers: list[Any] = []
    monkeypatch.setattr(
        torch.cuda.memory, "_record_memory_history", lambda **options: histories.append(options)
    )
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", observers.append, raising=False)

    def full(device: torch.device) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.cuda, "memory_summary", full)
    witness = CudaWitness(CUDA, tmp_path)
    witness.rest()
    (observer,) = observers
    observer(0, 3 * GIB, 3 * GIB, GIB)
    assert (witness.requested, witness.free) == (3 * GIB, GIB)
    assert "could not be kept" in capsys.readouterr().err, "the verdict comes without the evidence"
    assert [options["context"] for options in histories] == ["all", None]


def test_what_a_proof_reports_is_counted_before_larger_evaluations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The worker's side of the device's peak: what comes after the report is none of the training's."""
    began: list[float] = []

    def larger(request: ProbeRequest, stepper: Stepper, report: object) -> int:
        time.sleep(0.001)
        began.append(time.monotonic())
        return 8

    training, phases, _ = make()
    monkeypatch.setattr(prove, "largest_evaluation", larger)
    training = replace(training, of_one_length="all alike")
    monkeypatch.setattr(assembly, "assemble", lambda request: training)
    request = ProbeRequest(
        kind="prove", model=ModelSpec(name="x", source="config", config={}), candidate=Candidate(micro_batch=4),
        seq_len=1, accumulation_steps=1, device="cpu", budget=2**30, seed=0, sample_seconds=0.0, sample_steps=3,
        folder=str(tmp_path),
    )  # fmt: skip
    probe = Probe(request, SimpleNamespace(send=lambda message: None, progress=lambda phase, step: None))  # type: ignore[arg-type]
    meter = SimpleNamespace(
        **{name: getattr(phases.meter, name) for name in ("synchronize", "lap", "baseline", "asynchronous")},
        peaks=lambda: Peaks(0, 0, 0), section=lambda: 0, taken=0, close=lambda: None,
    )  # fmt: skip
    monkeypatch.setattr(Probe, "_start", lambda self: self._phases.measure_with(meter))
    answer = probe.answer()
    assert isinstance(answer, Result)
    assert isinstance(answer.outcome, Ok), answer.outcome
    assert answer.outcome.evaluation_micro_batch == 8
    assert answer.counted_until is not None
    assert answer.counted_until < began[0]
