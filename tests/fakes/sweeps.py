"""Sweeps on arithmetic: a file of them, and what stands for the devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TWO_BY_TWO: dict[str, Any] = {
    "name": "nightly",
    "matrix": {
        "model": ["gpt2", "tiny-llama"],
        "hardware": ["small"],
        "goal": ["short", "long"],
        "space": "minimal",
    },
    "hardware": {"small": {"device": "cpu:1GiB", "at_once": 2, "price_per_hour": "2 USD"}},
    "goals": {
        "short": {"target_global_batch": "1600 samples", "seq_len": 64},
        "long": {"target_global_batch": "1600 samples", "seq_len": 128},
    },
    "limits": {"max_probes": 5, "sample_time": 10, "proof_time": 10},
}
"""Four cells on one hardware."""


def write_sweep(folder: Path, **changes: Any) -> Path:
    """Write a sweep file: `TWO_BY_TWO`, but for some keys."""
    file = folder / "sweep.yaml"
    file.write_text(json.dumps({**TWO_BY_TWO, **changes}))
    return file
