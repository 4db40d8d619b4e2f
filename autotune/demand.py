"""What a candidate needs beside the device's memory: bytes of host memory (CUDA) or of disk (cpu)."""

from __future__ import annotations

from autotune.candidate import Candidate
from autotune.memory.formula import state_bytes
from autotune.specs import ModelFacts

_FP32 = 4


def _weight_bytes(candidate: Candidate) -> int:
    return 2 if candidate.precision == "bf16-pure" else _FP32


def optimizer_state_bytes(candidate: Candidate, facts: ModelFacts) -> int:
    """Return the bytes of optimizer state; Adafactor's as if all parameters were in square matrices.

    torch's own optimizers keep it in the parameters' type, the others in their own.
    """
    each = state_bytes(candidate.optimizer, facts.hidden, facts.hidden)
    if candidate.optimizer in {"adamw", "momentum"}:
        each *= _weight_bytes(candidate) / _FP32
    return int(each * facts.trainable_parameters)


def offloaded_bytes(candidate: Candidate, facts: ModelFacts) -> int:
    """Return the bytes that live off the device: optimizer state, with `gradients` those too, with `full` all."""
    match candidate.offload:
        case "none":
            return 0
        case "optimizer":
            return optimizer_state_bytes(candidate, facts)
        case "gradients":
            return _weight_bytes(candidate) * facts.trainable_parameters + optimizer_state_bytes(
                candidate, facts
            )
        case "full":
            held = _weight_bytes(candidate) * (facts.parameters + facts.trainable_parameters)
            return held + optimizer_state_bytes(candidate, facts)


def checkpoint_bytes(candidate: Candidate, facts: ModelFacts) -> int:
    """Return the bytes of a saved checkpoint: parameters and optimizer state."""
    return _weight_bytes(candidate) * facts.parameters + optimizer_state_bytes(candidate, facts)
