"""A candidate in the words of DeepSpeed's configuration file."""

from __future__ import annotations

from typing import Any

from autotune.candidate import Candidate
from autotune.techniques.sharding import SHARDINGS


def deepspeed_settings(candidate: Candidate, width: int, pin_memory: bool) -> dict[str, Any]:
    """Return what follows from a candidate, and from the `width` of its model's hidden states.

    Batch sizes and clipping are left to who trains. The optimizer is torch's, over DeepSpeed's shards: DeepSpeed is
    told to take one that it did not test, and under offload not to insist on its own. `pin_memory` is for host memory
    that a GPU copies from. Buffers are as large as transformers makes them where its Trainer is left to choose
    (`auto`): a width by a width, the numbers of one square matrix. DeepSpeed's own size, 500 million numbers, is most
    of a small device; it stays where the width is not known (0).
    """
    zero: dict[str, Any] = {"stage": SHARDINGS[candidate.sharding].stage or 0}
    if width:
        zero["reduce_bucket_size"] = width * width
    if width and candidate.sharding == "zero3":
        zero["stage3_prefetch_bucket_size"] = int(0.9 * width * width)
        zero["stage3_param_persistence_threshold"] = 10 * width
    if candidate.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": pin_memory}
    if candidate.offload == "full":
        zero["offload_param"] = {"device": "cpu", "pin_memory": pin_memory}
    return {
        "zero_optimization": zero,
        "bf16": {"enabled": candidate.precision == "bf16"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
