"""Probe requests for the tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune.candidate import Candidate
from autotune.probe.protocol import ProbeRequest
from autotune.specs import ModelSpec
from tests.data.families import FAMILIES

OWN = ModelSpec(name="own_model:build", source="function", path=str(Path(__file__).parent))
"""The user's own model beside this file."""


def family(name: str, **changes: Any) -> ModelSpec:
    """Return the tiny model of a family, with some values of its configuration changed."""
    return ModelSpec(name=name, source="preset", config={**FAMILIES[name], **changes})


def request(
    model: ModelSpec, folder: Path, *, device: str = "cpu", seq_len: int = 32, **candidate: Any
) -> ProbeRequest:
    """Return a request to train `model` under the candidate of the given fields."""
    return ProbeRequest(
        kind="train", model=model, candidate=Candidate(**candidate), seq_len=seq_len, accumulation_steps=1,
        device=device, budget=1 << 40, seed=0, sample_seconds=1, sample_steps=3, folder=str(folder),
    )  # fmt: skip
