"""The page on real GPUs and the README's table say what the recorded evidence says, and nothing without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_report import RECORD, Evidence, limits, page

ROOT = Path(__file__).parents[2]
EMPTY = "<!-- measured: made by benchmarks/gpu_report.py -->\n<!-- end of measured -->\n"
CALL = {"call": {"date": "2027-01-02T03:04:05+00:00", "device": "NVIDIA H200", "driver": "580.1",
                 "versions": {"torch": "2.11.0"}, "command": "python -m benchmarks.gpu_evidence"}}  # fmt: skip


def numbers(allocated: int, seconds: float) -> dict[str, Any]:
    return {
        "verdict": "ok", "allocated": allocated, "reserved": 2 * allocated, "device_peak": 3 * allocated,
        "baseline": 500 << 20, "global_step": seconds, "attention_kernels": ["flash"],
    }  # fmt: skip


def probe(measured: int, predicted: int) -> dict[str, Any]:
    return {
        "case": f"memory gpt2 bf16 x{measured}",
        "result": {"model": "gpt2", "rung": "bf16", "micro_batch": 2, "measured": numbers(measured, 2.0),
                   "predicted": numbers(predicted, 1.5), "roofline": {"busiest": "compute", "bound": 0.9}},
    }  # fmt: skip


def test_the_pages_say_what_the_record_says() -> None:
    evidence = Evidence.read()
    made = "make it anew: python -m benchmarks.gpu_report --write docs/gpu.md --readme README.md"
    for path, filled in ((ROOT / "docs" / "gpu.md", page), (ROOT / "README.md", limits)):
        assert path.read_text() == filled(path.read_text(), evidence), made
    if not RECORD.exists():
        assert "Nothing that was run on a GPU is on record" in (ROOT / "docs" / "gpu.md").read_text()


def test_every_number_stands_beside_its_target() -> None:
    run = {"case": "run with predictions",
           "result": {"winner": "bf16", "probes": 9, "ooms": 0, "seconds": 100.0}}  # fmt: skip
    facts = {"case": "facts", "result": {"before": {"used": 0}, "behind": [{"used": 70 << 20}]}}
    back = {"case": "given back", "result": {"free_again_seconds": 0.5}}
    shares = {"matrix": 0.71, "attention": 0.5, "memory": 0.9, "host_link": 0.8, "launch": 6e-6}
    engines = {"case": "engines", "result": {"shares": shares}}
    broken = {"case": "variant x", "result": {"failed": "ValueError: y"}}
    lines = [
        {"subject": "a GPU"},
        CALL,
        probe(1000, 1001),
        probe(2000, 2100),
        run,
        facts,
        back,
        engines,
        broken,
    ]
    text = page(EMPTY, Evidence(lines))
    assert "Allocated: 2.55% in the median, 5.00% at worst; at most 1%, and 3% asked: **missed**." in text
    assert "gpt2-xl: at most 8 probes and 3 minutes asked: **missed**." in text
    assert "free again in 0.50 s; at most 2 s asked: met." in text
    assert "| a CUDA context | 620 MiB, with kernels ± 150 MiB | 500 MiB |" in text
    assert "70 MiB |" in text
    assert "| 2.0000 | -25% | compute | 45% | flash |" in text
    assert "| 68% | 71% of single operators; predicted seconds -25% off in the median |" in text
    assert "| 2 and 10 µs | 6.0 µs together;" in text
    assert "- variant x: ValueError: y" in text
    assert "NVIDIA H200, driver 580.1; torch 2.11.0" in text
    table = limits(EMPTY, Evidence(lines))
    assert "| NVIDIA H200 | 2 predicted probes, a run of gpt2-xl to its winner | 2027-01-02 |" in table
    assert "| none | nothing | never |" in limits(EMPTY, Evidence([]))


def test_a_dry_run_fills_no_page() -> None:
    with pytest.raises(SystemExit):
        Evidence([{"subject": "a simulated GPU"}])
