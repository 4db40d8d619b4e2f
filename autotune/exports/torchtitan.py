"""Export to torchtitan 0.3: a Python configuration of its Llama, of the sizes that were measured."""

from __future__ import annotations

from typing import Any

from autotune.exports.fields import Expressed, not_expressed, refuse
from autotune.exports.shared import (
    ALLOCATOR,
    MAKE_INPUTS,
    input_files,
    launch_files,
    on_all_ranks,
    pretty,
    refuse_prefetch,
    refuse_ranks,
    refuse_task,
    script,
)
from autotune.run.best import Best

PACKAGE = "torchtitan"
"""What has to be installed to train from the files."""
STEPS = ("--training.steps", "2")
"""What has `launch.sh` end after two optimizer steps."""

DTYPES = {
    "fp32": ("float32", "float32"), "bf16": ("float32", "bfloat16"), "bf16-pure": ("bfloat16", "bfloat16"),
}  # fmt: skip
"""Types of parameters and of products, by precision."""
CHECKPOINTING = {"none": None, "full": "FullAC", "alternate": "SelectiveAC"}
"""torchtitan's names: its selective checkpointing recomputes every second product, as `alternate` does."""
ATTENTION = {"sdpa": "flex", "flex_attention": "flex", "flash_attention_2": "varlen"}
"""torchtitan's names of what is nearest: its language models have no other attention."""


def _refuse_model(best: Best) -> str | None:
    if (reason := refuse_task(best)) is not None:
        return reason
    config = best.model.config or {}
    if config.get("model_type") != "llama":
        return "torchtitan has model code of its own, of which this export knows the Llama. Use --to native"
    if config.get("attention_bias") or config.get("mlp_bias"):
        return "torchtitan's Llama has no biases. Use --to native"
    return None


def _only(values: tuple[str, ...], field: str, reason: str) -> Expressed:
    """Return a field of which torchtitan has these values."""
    where = f"titan.json: {field}"
    return Expressed(where, lambda best: None if getattr(best.candidate, field) in values else reason)


FIELDS = {
    "precision": _only(
        tuple(DTYPES), "precision", "torchtitan trains in float32 and bfloat16 alone. Use --to native"
    ),
    "attention": _only(
        tuple(ATTENTION), "attention", "torchtitan's Llama has flex and varlen attention alone. Use --to native"
    ),
    "checkpointing": _only(
        tuple(CHECKPOINTING), "checkpointing",
        "torchtitan recomputes whole blocks, or every second product in them. Use --to native",
    ),
    "num_workers": Expressed("titan.json: num_workers"),
    "prefetch_factor": Expressed("titan.json: prefetch_factor", refuse_prefetch),
    "pin_memory": Expressed("titan.json: pin_memory"),
    "loss": Expressed("titan.json: loss"),
    "optimizer": _only(
        ("adamw",), "optimizer", "torchtitan's optimizers are Adam, AdamW and Muon. Use --to native"
    ),
    "optimizer_kernel": Expressed("titan.json: implementation"),
    "sharding": Expressed(
        "titan.json: data_parallel_replicate_degree, data_parallel_shard_degree, fsdp_reshard_after_forward",
        lambda best: None
        if best.candidate.sharding in ("none", "ddp", "fsdp2", "zero2", "hsdp")
        else not_expressed(best, "sharding"),
    ),
    "expandable_segments": Expressed(ALLOCATOR),
    "max_split_size": Expressed(ALLOCATOR),
    "micro_batch": Expressed("titan.json: local_batch_size"),
}  # fmt: skip


def differences(best: Best) -> tuple[str, ...]:
    """Return by what torchtitan's training differs from the one that was measured, a sentence each."""
    candidate = best.candidate
    found = ["torchtitan trains model code of its own, and transformers' was measured"]
    if candidate.attention != "flex_attention":
        found.append(
            f"its attention is {ATTENTION[candidate.attention]}, and {candidate.attention} was measured"
        )
    return tuple(found)


def export(best: Best) -> dict[str, str]:
    """Return the files that `sh launch.sh` trains from. Raises CannotExport."""
    refuse(best, "torchtitan", FIELDS, {"model": _refuse_model(best), "gpus": refuse_ranks(best)})
    program = "-m torchtitan.train --module titan_config --config tuned"
    alone = f"-m torch.distributed.run --standalone --nproc_per_node=1 {program}"
    return {
        "titan_config.py": script("torchtitan_config.py"),
        "titan.json": pretty(_settings(best)),
        **launch_files(best, on_all_ranks(best, program) if best.gpus > 1 else alone, MAKE_INPUTS),
        **input_files(best, rows="text"),
    }


def _settings(best: Best) -> dict[str, Any]:
    candidate = best.candidate
    parameters, products = DTYPES[candidate.precision]
    each = best.gpus // best.nodes
    replicas, shards = {
        "ddp": (best.gpus, 1), "hsdp": (best.nodes, each), "none": (1, 1),
    }.get(candidate.sharding, (1, best.gpus))  # fmt: skip
    return {
        "local_batch_size": candidate.micro_batch,
        "global_batch_size": candidate.micro_batch * best.accumulation.steps * best.accumulation.world_size,
        "seq_len": best.seq_len,
        "dtype": parameters,
        "mixed_precision_param": products,
        "attention": ATTENTION[candidate.attention],
        "checkpointing": CHECKPOINTING[candidate.checkpointing],
        "loss": candidate.loss,
        "implementation": candidate.optimizer_kernel,
        "sharding": candidate.sharding,
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": "never" if candidate.sharding == "zero2" else "always",
        "num_workers": candidate.num_workers,
        "prefetch_factor": candidate.prefetch_factor if candidate.num_workers else None,
        "pin_memory": candidate.pin_memory,
        "disable_cuda_graphs": True,
    }
