"""What a worker does on CUDA, with the functions of `torch.cuda` scripted: no GPU is needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.candidate import Candidate
from autotune.outcome import Crash
from autotune.worker.__main__ import Probe
from autotune.worker.build.composition import _set_precision
from autotune.worker.measuring.oom_snapshot import SNAPSHOT, SUMMARY, CudaWitness

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
