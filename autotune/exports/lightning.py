"""Export to Lightning: arguments of its Trainer, and a module and strategy that run what was measured.

FSDP2 is what was measured of parameters in shards, so the strategy is `ModelParallelStrategy`, in which a module
shards itself. Lightning's `FSDPStrategy` is torch's FSDP1, with other buffers, flat parameters, no processor: nothing
of it was measured, so nothing is exported to it. `FSDP_ARGUMENTS` says what became of each of its arguments.
"""

from __future__ import annotations

from typing import Any

from autotune.exports.fields import Expressed, not_expressed, refuse
from autotune.exports.shared import (
    pretty,
    refuse_checkpointing,
    refuse_model,
    refuse_precision,
    refuse_ranks,
)
from autotune.exports.training_file import FIELDS as OF_THE_LOOP
from autotune.exports.training_file import loop_files
from autotune.run.best import Best

PACKAGE = "lightning"
"""What has to be installed to train from the files."""

IN_SHARDS = ("fsdp2", "zero2")
"""Shardings whose parameters are in shards between steps: FSDP2's, by what is gathered again in backward."""

FSDP_ARGUMENTS = {
    "auto_wrap_policy": "`training.json: blocks`: the module shards each of these classes by itself, as measured",
    "activation_checkpointing_policy": "`training.json: checkpointing`; `full` alone, as transformers does it",
    "activation_checkpointing": "its older name",
    "sharding_strategy": "`training.json: sharding`: `fsdp2` gathers again in backward, `zero2` does not",
    "device_mesh": "all ranks shard together; `hsdp`, which replicates across nodes, is refused",
    "mixed_precision": "`trainer.json: precision`, and `training.json: reduce_dtype`",
    "limit_all_gathers": "nothing to limit: FSDP2 gathers one block ahead",
    "backward_prefetch": "the same: one block ahead, as it was measured",
    "forward_prefetch": "the same",
    "use_orig_params": "nothing to choose: FSDP2 shards each parameter by itself, and makes no flat ones",
    "cpu_offload": (
        "refused as `offload`: FSDP2's offload was not measured under Lightning's loop, which clips on the device"
    ),
    "state_dict_type": (
        "of checkpoints, which the script leaves to you (`trainer.json: enable_checkpointing` is false)"
    ),
}
"""Arguments of `FSDPStrategy` and of FSDP1 that set memory: what stands for each under `ModelParallelStrategy`."""


def _refuse_precision(best: Best) -> str | None:
    if best.candidate.precision == "fp8":
        return "Lightning's fp8 is Transformer Engine's, and torchao's was measured. Use --to accelerate or --to native"
    if best.candidate.precision == "fp16" and best.candidate.sharding in IN_SHARDS:
        return (
            "Lightning scales fp16's loss by rules of its own where parameters are in shards. Use --to native"
        )
    return refuse_precision(best)


def _refuse_sharding(best: Best) -> str | None:
    if best.candidate.sharding in ("none", "ddp", *IN_SHARDS) and best.candidate.engine == "torch":
        return None
    return not_expressed(best, "sharding")


def _refuse_reduction(best: Best) -> str | None:
    if best.candidate.sharding in IN_SHARDS:
        return None
    return not_expressed(best, "reduce_dtype")


FIELDS = {
    **OF_THE_LOOP,
    "precision": Expressed("trainer.json: precision", _refuse_precision),
    "checkpointing": Expressed("training.json: checkpointing", refuse_checkpointing),
    "optimizer": Expressed("training.json: optimizer"),
    "sharding": Expressed(
        "training.json: sharding; DDPStrategy for `ddp`, ModelParallelStrategy for `fsdp2` and `zero2`",
        _refuse_sharding,
    ),
    "reduce_dtype": Expressed("training.json: reduce_dtype, of `fsdp2` and `zero2`", _refuse_reduction),
    "micro_batch": Expressed("training.json: micro_batch"),
}

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed", "bf16-pure": "32-true"}
"""Lightning's names. Its `bf16-true` casts buffers too, so of `bf16-pure` model.py casts the parameters alone."""


def export(best: Best) -> dict[str, str]:
    """Return the files that `sh launch.sh` trains from. Raises CannotExport."""
    refuse(best, "lightning", FIELDS, {"model": refuse_model(best), "gpus": refuse_ranks(best)})
    candidate = best.candidate
    own = {
        "micro_batch": candidate.micro_batch,
        "sharding": candidate.sharding,
        "reduce_dtype": candidate.reduce_dtype,
        "blocks": (best.facts.block_class or "").split(","),
    }
    return {"trainer.json": pretty(_trainer(best)), **loop_files(best, "lightning_train.py", **own)}


def _trainer(best: Best) -> dict[str, Any]:
    """Return the arguments of `Trainer`, but for the strategy, which is an object."""
    candidate = best.candidate
    # Lightning does not clip where a fused optimizer takes the loss scale off by itself.
    clipped = not (candidate.precision == "fp16" and candidate.optimizer_kernel == "fused")
    return {
        "accelerator": "cpu" if best.device.kind == "cpu" else "gpu",
        "devices": best.gpus // best.nodes,
        "num_nodes": best.nodes,
        "precision": PRECISIONS[candidate.precision],
        "accumulate_grad_batches": best.accumulation.steps,
        "gradient_clip_val": 1.0 if clipped else None,
        "gradient_clip_algorithm": "norm",
        "use_distributed_sampler": True,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
