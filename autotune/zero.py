"""A candidate in the words of DeepSpeed's configuration file."""

from __future__ import annotations

from typing import Any

from autotune.candidate import Candidate, Sharding

STAGES: dict[Sharding, int] = {"zero1": 1, "zero2": 2, "zero3": 3}
"""ZeRO's stage of each sharding that DeepSpeed offers here."""


def deepspeed_settings(candidate: Candidate, pin_memory: bool) -> dict[str, Any]:
    """Return what follows from a candidate; batch sizes and clipping are left to who trains.

    The optimizer is torch's, over DeepSpeed's shards: DeepSpeed is told to take one that it did not test, and under
    offload not to insist on its own. `pin_memory` is for host memory that a GPU copies from.
    """
    zero: dict[str, Any] = {"stage": STAGES.get(candidate.sharding, 0)}
    if candidate.offload == "optimizer":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": pin_memory}
    return {
        "zero_optimization": zero,
        "bf16": {"enabled": candidate.precision == "bf16"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
