"""What a candidate needs beside the device's memory: bytes of host memory (CUDA) or of disk (cpu)."""

from __future__ import annotations

from pathlib import Path

from autotune.candidate import Candidate
from autotune.memory.formula import state_bytes
from autotune.specs import ModelFacts

SHARED_MEMORY = Path("/dev/shm")
"""Where a loader's worker processes put batches for training to take."""

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


def batches_ahead(candidate: Candidate) -> int:
    """Return the batches that its DataLoader holds in host memory before they are trained on, at most."""
    return candidate.workers * candidate.prefetch if candidate.workers else int(candidate.pin_memory)


def loader_bytes(candidate: Candidate, sample_bytes: int) -> int:
    """Return the host memory of batches in advance: in shared memory, pinned or not, of workers; else a pinned one."""
    copies = (
        2 if candidate.workers and candidate.pin_memory else 1
    )  # out of shared memory into pinned, one by one
    return batches_ahead(candidate) * candidate.micro_batch * sample_bytes * copies


def checkpoint_bytes(candidate: Candidate, facts: ModelFacts) -> int:
    """Return the bytes of a saved checkpoint: parameters and optimizer state."""
    return _weight_bytes(candidate) * facts.parameters + optimizer_state_bytes(candidate, facts)
