"""Part 3 of the accuracy benchmark, from a record as `gpu_ladder.py` writes it."""

import json

import pytest
from rich.console import Console

from autotune.specs import DeviceFacts
from autotune.techniques.families import title as title_of
from benchmarks import accuracy_on_gpu
from benchmarks.gpu_ladder import rungs


def ladder(*rows):
    """A record of tiny-gpt2 on an H200."""
    device = DeviceFacts(
        kind="cuda", name="NVIDIA H200", torch_name="cuda:0", budget=1 << 37, total=1 << 37, hardware="h200",
        dtypes=("bf16",),
    )  # fmt: skip
    return {"device": device.model_dump(), "seq_len": 64, "accumulation_steps": 8, "rows": list(rows)}


def row(rung, micro_batch, **numbers):
    """A probe that trained, with 200 MiB allocated of 300 reserved, unless told otherwise."""
    found = {
        "allocated": 200 << 20,
        "reserved": 300 << 20,
        "device_peak": 800 << 20,
        "verdict": "ok",
        **numbers,
    }
    return {"rung": rung, "micro_batch": micro_batch, **found}


def test_a_recorded_ladder_is_compared_row_by_row(tmp_path, monkeypatch):
    plain, checkpointed = (
        title_of(rung) for rung in rungs() if title_of(rung) in ("bf16", "bf16 + checkpointing")
    )
    record = ladder(
        row(plain, 1), row(plain, 2), row(checkpointed, 2), {"rung": plain, "micro_batch": 4, "verdict": "oom"},
        row("a rung of another time", 1),
    )  # fmt: skip
    (tmp_path / "gpu_ladder-tiny-gpt2.json").write_text(json.dumps(record))
    monkeypatch.setattr(accuracy_on_gpu, "RESULTS", tmp_path)
    console = Console(record=True, width=150)
    rows, missed = accuracy_on_gpu.run(console)
    assert [(found["rung"], found["micro_batch"]) for found in rows] == [
        (plain, 1),
        (plain, 2),
        (checkpointed, 2),
    ]
    for found in rows:
        # Two workspaces of cuBLAS on Hopper are most of what so small a model takes.
        assert 64 << 20 <= found["predicted_allocated"] <= found["predicted_reserved"] < 128 << 20
        assert found["outside"] == 500 << 20
        error = found["predicted_reserved"] / (300 << 20) - 1
        assert accuracy_on_gpu.error(found, "reserved") == pytest.approx(error)
    assert missed, "the numbers are made up, and far off"
    printed = console.export_text()
    assert "a rung of another time: not traced: this version has no such rung" in printed
    assert "allocated: 3 rows" in printed


def test_without_a_record_it_says_where_one_comes_from(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(accuracy_on_gpu, "RESULTS", tmp_path)
    with pytest.raises(SystemExit):
        accuracy_on_gpu.run(Console())
    assert "`python -m benchmarks.gpu_ladder` on a machine with an NVIDIA GPU" in capsys.readouterr().err
