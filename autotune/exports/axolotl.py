"""Export to axolotl: its YAML, with example folders for the model and the data that it names."""

from __future__ import annotations

from typing import Any

from autotune.exports.fields import Expressed, refuse
from autotune.exports.shared import refuse_ranks, refuse_task
from autotune.exports.transformers import FIELDS as OF_THE_TRAINER
from autotune.exports.transformers import trainer_arguments
from autotune.exports.yaml_target import yaml_files
from autotune.run.best import Best

PACKAGE = "axolotl"
"""What has to be installed to train from the files."""
STEPS = ("--max-steps", "2")
"""What has `launch.sh` end after two optimizer steps."""

_SHARED = (
    "gradient_accumulation_steps", "learning_rate", "weight_decay", "max_grad_norm", "seed", "dataloader_drop_last",
    "dataloader_num_workers", "dataloader_pin_memory", "logging_steps", "save_strategy", "output_dir", "deepspeed",
    "optim_args",
)  # fmt: skip
"""Arguments of transformers' Trainer that axolotl has by the same name."""


def _refuse_precision(best: Best) -> str | None:
    if best.candidate.precision in ("fp32", "bf16"):
        return None
    return (
        "axolotl casts weights by rules of its own: linear layers one way, norms, embeddings and head another. "
        "Use --to native"
    )


FIELDS = {
    **{
        name: Expressed(expressed.where.replace("training_arguments.json", "axolotl.yaml"), expressed.refuse)
        for name, expressed in OF_THE_TRAINER.items()
        if name not in ("sequences", "kernels")
    },
    "precision": Expressed("axolotl.yaml: bf16, *not proven there*", _refuse_precision),
    "tf32": Expressed("axolotl.yaml: tf32 (no effect on a cpu)"),
    "attention": Expressed("axolotl.yaml: attn_implementation"),
    "optimizer": Expressed("axolotl.yaml: optimizer"),
    "optimizer_kernel": Expressed(
        "axolotl.yaml: optimizer; SGD's is torch's choice", OF_THE_TRAINER["optimizer_kernel"].refuse
    ),
    "micro_batch": Expressed("axolotl.yaml: micro_batch_size"),
}


def differences(best: Best) -> tuple[str, ...]:
    """Return by what axolotl's training differs from the one that was measured, a sentence each."""
    if best.candidate.precision != "bf16":
        return ()
    return (
        "under bf16 axolotl keeps the weights of linear layers in bf16, and norms, embeddings and head in fp32; "
        "measured were fp32 weights, so its memory is less and its updates are rounded",
    )


def export(best: Best) -> dict[str, str]:
    """Return the files that `sh launch.sh` trains from. Raises CannotExport."""
    refuse(best, "axolotl", FIELDS, {"model": refuse_task(best), "gpus": refuse_ranks(best)})
    return yaml_files(
        best, "axolotl.yaml", _settings(best), typed="axolotl train axolotl.yaml",
        program="-m axolotl.cli.train axolotl.yaml", rows="text",
    )  # fmt: skip


def _settings(best: Best) -> dict[str, Any]:
    """Return every key that sets memory: axolotl itself pins, prefetches 256 batches and checkpoints reentrantly."""
    candidate = best.candidate
    trainer = trainer_arguments(best)
    attention = best.attention if candidate.attention == "sdpa" else candidate.attention
    settings: dict[str, Any] = {
        "base_model": "model",
        "datasets": [{"path": "data/train.jsonl", "ds_type": "json", "type": "completion", "field": "text"}],
        "sequence_len": best.seq_len,
        "excess_length_strategy": "truncate",
        "sample_packing": False,
        "pad_to_sequence_len": False,
        "micro_batch_size": candidate.micro_batch,
        "eval_batch_size": trainer["per_device_eval_batch_size"],
        "num_epochs": 1,
        "val_set_size": 0.0,
        "optimizer": trainer["optim"],
        "lr_scheduler": "constant",
        "bf16": candidate.precision == "bf16",
        "fp16": False,
        "tf32": candidate.tf32 and best.device.kind == "cuda",
        "attn_implementation": attention or "sdpa",
        "gradient_checkpointing": candidate.checkpointing == "full",
        "activation_offloading": False,
        "layer_offloading": False,
        "chunked_cross_entropy": False,
        "tiled_mlp": False,
        "torch_compile": False,
        "auto_find_batch_size": False,
        **{name: trainer[name] for name in _SHARED if name in trainer},
    }
    if candidate.num_workers:
        settings["dataloader_prefetch_factor"] = candidate.prefetch_factor
    if candidate.checkpointing == "full":
        settings["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    return settings
