"""What a candidate needs beside the device's memory: bytes of host memory or of disk."""

from __future__ import annotations

from pathlib import Path

from autotune.candidate import Candidate
from autotune.memory.closed_form import state_bytes
from autotune.specs import ModelFacts
from autotune.techniques.sharding import IN_SHARDS, SHARDINGS

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


def pinned_bytes(candidate: Candidate, facts: ModelFacts, ranks: int = 1, nodes: int = 1) -> int:
    """Return the bytes of `offloaded_bytes` where they are pinned host memory.

    torch's allocator of it rounds each tensor up to a power of two (aten/src/ATen/core/CachingHostAllocator.h), so an
    embedding of 50,257 x 768 takes 1.74 times its bytes. Shards and states of other number types are rounded as much as
    the parameters are.
    """
    plain = offloaded_bytes(candidate, facts, ranks, nodes)
    if facts.pinned_parameters is None or not facts.trainable_parameters:
        return plain
    return plain * facts.pinned_parameters // facts.trainable_parameters


def offloaded_bytes(candidate: Candidate, facts: ModelFacts, ranks: int = 1, nodes: int = 1) -> int:
    """Return the bytes that live off one of the devices: optimizer state, `gradients` too, or with `full` all.

    `ranks` of `nodes` share the work; hybrid sharding shares state out inside each node. Activations that are offloaded
    come on top; how many there are, only a trace knows.
    """
    state, weight = optimizer_state_bytes(candidate, facts), _weight_bytes(candidate)
    traits = SHARDINGS[candidate.sharding]
    share = ranks if traits.optimizer_state else 1
    share //= nodes if traits.within_node else 1
    if candidate.engine == "deepspeed" and candidate.offload != "none":
        # With the state go masters and gradients in fp32, and a copy in the type that computes of what is on its way:
        # of gradients under zero3, else of parameters. Full offload adds the parameters themselves.
        own = 2 if candidate.precision == "bf16" else _FP32
        each = 2 * _FP32 + own * (2 if candidate.offload == "full" else 1)
        return (each * facts.trainable_parameters + state) // share
    match candidate.offload:
        case "none":
            return 0
        case "optimizer":
            return state // share
        case "gradients":
            return (weight * facts.trainable_parameters + state) // share
        case "full":
            return (weight * (facts.parameters + facts.trainable_parameters) + state) // share


def built_bytes(candidate: Candidate, facts: ModelFacts, ranks: int, own: bool, on_cpu: bool) -> int:
    """Return the bytes off its devices that a machine holds at most while `ranks` of it build the model.

    A user's `own` function is run by every rank, for a GPU always in host memory. Else what is shared out is built by
    one rank for all. DeepSpeed's ZeRO-3 builds on every rank. 0 for what is built on the device itself.
    """
    cut = candidate.tensor_parallel > 1
    traits = SHARDINGS[candidate.sharding]
    shards = candidate.engine == "torch" and candidate.sharding in IN_SHARDS
    away = cut or shards or (traits.weights and candidate.engine == "deepspeed")
    away |= candidate.offload == "full" or candidate.adapters == "qlora"
    if not away and (on_cpu or not own):
        return 0
    whole = (_FP32 if own else _weight_bytes(candidate)) * facts.parameters
    if own or candidate.engine == "deepspeed":
        return whole * ranks
    return whole


def batches_ahead(candidate: Candidate) -> int:
    """Return the batches that its DataLoader holds in host memory before they are trained on, at most."""
    return (
        candidate.num_workers * candidate.prefetch_factor
        if candidate.num_workers
        else int(candidate.pin_memory)
    )


def loader_bytes(candidate: Candidate, sample_bytes: int) -> int:
    """Return the host memory of batches in advance: in shared memory, pinned or not, of workers; else a pinned one."""
    # Out of shared memory into pinned, one by one.
    copies = 2 if candidate.num_workers and candidate.pin_memory else 1
    return batches_ahead(candidate) * candidate.micro_batch * sample_bytes * copies


def checkpoint_bytes(candidate: Candidate, facts: ModelFacts, ranks: int = 1) -> int:
    """Return the bytes that all ranks together save: parameters and optimizer state, whole ones as often as they are.

    Under adapters at least these: the frozen model alone, in QLoRA's four bits a number.
    """
    if candidate.adapters != "none":
        return (
            facts.parameters // 2
            if candidate.adapters == "qlora"
            else _weight_bytes(candidate) * facts.parameters
        )
    traits = SHARDINGS[candidate.sharding]
    cut = candidate.tensor_parallel > 1
    weights = _weight_bytes(candidate) * facts.parameters
    state = optimizer_state_bytes(candidate, facts)
    return weights * (1 if traits.weights or cut else ranks) + state * (
        1 if traits.optimizer_state or cut else ranks
    )
