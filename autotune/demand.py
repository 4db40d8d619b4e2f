"""What a candidate needs beside the device's memory: bytes of host memory (CUDA) or of disk (cpu)."""

from __future__ import annotations

from autotune.candidate import Candidate
from autotune.specs import ModelFacts

_FP32 = 4
_STATES = {"adamw": 2, "sgd": 0}
"""Tensors of optimizer state for each parameter: two moments (Kingma and Ba, 2015), none without momentum."""


def optimizer_state_bytes(candidate: Candidate, facts: ModelFacts) -> int:
    """Return the bytes of optimizer state, kept in fp32."""
    return _FP32 * _STATES[candidate.optimizer] * facts.trainable_parameters


def offloaded_bytes(candidate: Candidate, facts: ModelFacts) -> int:
    """Return the bytes that live off the device: optimizer state; with `full`, parameters and gradients too."""
    match candidate.offload:
        case "none":
            return 0
        case "optimizer":
            return optimizer_state_bytes(candidate, facts)
        case "full":
            held = _FP32 * (facts.parameters + facts.trainable_parameters)
            return held + optimizer_state_bytes(candidate, facts)


def checkpoint_bytes(candidate: Candidate, facts: ModelFacts) -> int:
    """Return the bytes of a saved checkpoint: parameters and optimizer state."""
    return _FP32 * facts.parameters + optimizer_state_bytes(candidate, facts)
