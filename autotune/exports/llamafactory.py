"""Export to LLaMA-Factory: the YAML of `llamafactory-cli train`, with example folders for the model and the data."""

from __future__ import annotations

from typing import Any

from autotune.exports.fields import Expressed, refuse
from autotune.exports.shared import pretty, refuse_ranks, refuse_task
from autotune.exports.transformers import FIELDS as OF_THE_TRAINER
from autotune.exports.transformers import trainer_arguments
from autotune.exports.yaml_target import yaml_files
from autotune.run.best import Best

PACKAGE = "llamafactory"
"""What has to be installed to train from the files."""
STEPS = ("max_steps=2",)
"""What has `launch.sh` end after two optimizer steps."""

ATTENTION = {"sdpa": "sdpa", "eager": "disabled", "flash_attention_2": "fa2"}
"""LLaMA-Factory's names."""


def _refuse_precision(best: Best) -> str | None:
    if best.candidate.precision == "bf16-pure" and best.device.kind == "cpu":
        return "LLaMA-Factory refuses pure_bf16 without a GPU. Use --to native"
    return OF_THE_TRAINER["precision"].refuse(best)


def _refuse_attention(best: Best) -> str | None:
    if best.candidate.attention in ATTENTION:
        return None
    return "LLaMA-Factory's flash_attn has no name for it. Use --to transformers or --to native"


FIELDS = {
    **{
        name: Expressed(expressed.where.replace("training_arguments.json", "train.yaml"), expressed.refuse)
        for name, expressed in OF_THE_TRAINER.items()
        if name != "sequences"
    },
    "precision": Expressed("train.yaml: bf16, fp16, pure_bf16", _refuse_precision),
    "attention": Expressed("train.yaml: flash_attn", _refuse_attention),
    "checkpointing": Expressed(
        "train.yaml: disable_gradient_checkpointing, use_reentrant_gc",
        OF_THE_TRAINER["checkpointing"].refuse,
    ),
    "kernels": Expressed("train.yaml: enable_liger_kernel"),
}


def differences(best: Best) -> tuple[str, ...]:
    """Return by what LLaMA-Factory's training differs from the one that was measured, a sentence each."""
    return (
        "LLaMA-Factory 0.9.5 wants transformers up to 5.6, and the model was measured as transformers "
        f"{best.facts.transformers_version} writes it",
    )


def export(best: Best) -> dict[str, str]:
    """Return the files that `sh launch.sh` trains from. Raises CannotExport."""
    refuse(best, "llamafactory", FIELDS, {"model": refuse_task(best), "gpus": refuse_ranks(best)})
    several = best.gpus > 1 or best.candidate.engine == "deepspeed"
    program = "-m llamafactory.launcher train.yaml" if several else "-m llamafactory.cli train train.yaml"
    named = {"example": {"file_name": "data/train.jsonl", "columns": {"prompt": "text"}}}
    return {
        **yaml_files(
            best, "train.yaml", _arguments(best), typed="llamafactory-cli train train.yaml", program=program,
            rows="text", more="; `stage: pt` trains on plain text, without a template",
        ),
        "dataset_info.json": pretty(named),
    }  # fmt: skip


def _arguments(best: Best) -> dict[str, Any]:
    """Return every argument that sets memory: LLaMA-Factory checkpoints, and packs text, where nothing is said."""
    candidate = best.candidate
    measured = best.attention if candidate.attention == "sdpa" else candidate.attention
    own = ("gradient_checkpointing", "gradient_checkpointing_kwargs", "use_liger_kernel")
    arguments = {name: value for name, value in trainer_arguments(best).items() if name not in own}
    return {
        "model_name_or_path": "model",
        "stage": "pt",
        "do_train": True,
        "finetuning_type": "full",
        "dataset": "example",
        "dataset_dir": ".",
        "cutoff_len": best.seq_len,
        "packing": False,
        "neat_packing": False,
        **arguments,
        "pure_bf16": candidate.precision == "bf16-pure",
        "flash_attn": ATTENTION.get(measured or "sdpa", "sdpa"),
        "disable_gradient_checkpointing": candidate.checkpointing != "full",
        "use_reentrant_gc": False,
        "use_unsloth_gc": False,
        "enable_liger_kernel": candidate.kernels == "liger",
        "upcast_layernorm": False,
        "upcast_lmhead_output": False,
        "resize_vocab": False,
        "torch_compile": False,
        "auto_find_batch_size": False,
        "eval_strategy": "no",
        "overwrite_output_dir": True,
        "plot_loss": False,
    }
