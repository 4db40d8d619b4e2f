"""Export to DeepSpeed: its JSON, complete, and a training script that hands model and optimizer to its engine."""

from __future__ import annotations

from typing import Any

from autotune.exports.fields import Expressed, refuse
from autotune.exports.shared import pretty, refuse_checkpointing, refuse_model, refuse_ranks
from autotune.exports.training_file import FIELDS as OF_THE_LOOP
from autotune.exports.training_file import loop_files
from autotune.run.best import Best
from autotune.techniques.deepspeed_config import deepspeed_settings

PACKAGE = "deepspeed"
"""What has to be installed to train from the files."""

BUCKET = 500_000_000
"""Numbers in a bucket where nothing is said (deepspeed.runtime.zero.config, 0.19)."""
PREFETCHED = 50_000_000
"""Numbers that ZeRO-3 gathers in advance where nothing is said (the same)."""
PERSISTENT = 100_000
"""Parameters below so many numbers stay whole under ZeRO-3 where nothing is said (the same)."""
LIVE = 1_000_000_000
"""Numbers that ZeRO-3 may keep gathered, and within which it keeps what is used again (the same)."""


def _refuse_engine(best: Best) -> str | None:
    if best.candidate.engine == "deepspeed":
        return None
    return (
        "it was measured without DeepSpeed, whose engine keeps other buffers and casts the model itself: tune with "
        "engine: deepspeed in the space, or use --to native"
    )


def _refuse_precision(best: Best) -> str | None:
    if best.candidate.precision in ("fp32", "bf16"):
        return None
    return "DeepSpeed's engine was measured in fp32 and bf16, and has rules of its own for others. Use --to native"


def _refuse_optimizer(best: Best) -> str | None:
    if best.candidate.optimizer in ("adamw", "momentum", "sgd"):
        return None
    return "DeepSpeed flattens parameters, and this optimizer looks at their shapes. Use --to native"


def _refuse_sharding(best: Best) -> str | None:
    if best.candidate.engine == "torch" or best.candidate.sharding in ("zero1", "zero2", "zero3"):
        return None  # what torch shards is refused as an engine
    return "DeepSpeed's engine was measured with ZeRO alone. Use --to native"


def _refuse_offload(best: Best) -> str | None:
    if best.candidate.offload == "gradients":
        return "under DeepSpeed gradients leave the device with the optimizer's state alone. Use --to native"
    return None


def _refuse_place(best: Best) -> str | None:
    if best.candidate.offload_to == "auto":
        return None
    return "DeepSpeed was measured with host memory, which is what `auto` says of it; a disk needs its libaio extension"


def _refuse_checkpointing(best: Best) -> str | None:
    if best.candidate.checkpointing == "offloaded":
        return (
            "DeepSpeed's cpu_checkpointing works in deepspeed.checkpointing.checkpoint alone, which the layers of "
            "transformers do not call: its section of the configuration turns nothing on. Use --to native"
        )
    return refuse_checkpointing(best)


ZERO = "deepspeed.json: zero_optimization"
FIELDS = {
    **OF_THE_LOOP,
    "precision": Expressed("deepspeed.json: bf16", _refuse_precision),
    "checkpointing": Expressed("training.json: checkpointing", _refuse_checkpointing),
    "offload": Expressed(f"{ZERO}: offload_optimizer, offload_param", _refuse_offload),
    "offload_to": Expressed(f"{ZERO}: `cpu`, of `auto` alone", _refuse_place),
    "optimizer": Expressed("training.json: optimizer", _refuse_optimizer),
    "sharding": Expressed(f"{ZERO}: stage", _refuse_sharding),
    "engine": Expressed("deepspeed.json", _refuse_engine),
    "micro_batch": Expressed("deepspeed.json: train_micro_batch_size_per_gpu"),
}


def export(best: Best) -> dict[str, str]:
    """Return the files that `sh launch.sh` trains from. Raises CannotExport."""
    refuse(best, "deepspeed", FIELDS, {"model": refuse_model(best), "gpus": refuse_ranks(best)})
    return {
        "deepspeed.json": pretty(settings(best)),
        **loop_files(best, "deepspeed_train.py"),
    }


def settings(best: Best) -> dict[str, Any]:
    """Return DeepSpeed's whole configuration: no key that sets memory is left to a default, none is `auto`."""
    candidate = best.candidate
    told = deepspeed_settings(candidate, best.facts.hidden, pin_memory=best.device.kind == "cuda")
    zero = {**_defaults(told["zero_optimization"]["stage"]), **told["zero_optimization"]}
    return {
        # Of all ranks: DeepSpeed then refuses to train on another number of them than was measured.
        "train_batch_size": candidate.micro_batch * best.accumulation.steps * best.accumulation.world_size,
        "train_micro_batch_size_per_gpu": candidate.micro_batch,
        "gradient_accumulation_steps": best.accumulation.steps,
        "gradient_clipping": 1.0,
        **told,
        "fp16": {"enabled": False},
        "zero_optimization": zero,
        # Of DeepSpeed's own checkpoint function, which transformers does not call; train.py has the layers checkpoint.
        "activation_checkpointing": {
            "partition_activations": False,
            "cpu_checkpointing": False,
            "contiguous_memory_optimization": False,
            "number_checkpoints": None,
            "synchronize_checkpoint_boundary": False,
            "profile": False,
        },
        "steps_per_print": 1_000_000,
        "wall_clock_breakdown": False,
    }


def _defaults(stage: int) -> dict[str, Any]:
    """Return DeepSpeed's own values of what sets memory and is not told, under which the numbers were measured."""
    values: dict[str, Any] = {
        "contiguous_gradients": True,
        "overlap_comm": stage == 3,
        "reduce_scatter": True,
        "reduce_bucket_size": BUCKET,
        "allgather_partitions": True,
        "allgather_bucket_size": BUCKET,
        "round_robin_gradients": False,
    }
    if stage == 3:
        values |= {
            "stage3_prefetch_bucket_size": PREFETCHED,
            "stage3_param_persistence_threshold": PERSISTENT,
            "stage3_max_live_parameters": LIVE,
            "stage3_max_reuse_distance": LIVE,
            "sub_group_size": LIVE,
        }
    return values
