"""Export to TRL: the YAML of `trl sft`, with example folders for the model and the data that it names."""

from __future__ import annotations

from typing import Any

from autotune.exports.fields import Expressed, refuse
from autotune.exports.shared import refuse_ranks, refuse_task
from autotune.exports.transformers import FIELDS as OF_THE_TRAINER
from autotune.exports.transformers import trainer_arguments
from autotune.exports.yaml_target import yaml_files
from autotune.run.best import Best

PACKAGE = "trl"
"""What has to be installed to train from the files."""
STEPS = ("--max_steps", "2")
"""What has `launch.sh` end after two optimizer steps."""

_LEFT_OUT = ("sequences", "kernels")
"""What the Trainer does as it was measured, and TRL does not: its packing drops padding, and its Liger the loss."""


def _refuse_kernels(best: Best) -> str | None:
    if best.candidate.kernels == "torch":
        return None
    return "TRL takes Liger's kernels of layers, and never its loss, which was measured. Use --to native"


FIELDS = {
    **{
        name: Expressed(
            expressed.where.replace("training_arguments.json", "sft.yaml").replace(
                "settings.json: attention", "sft.yaml: attn_implementation"
            ),
            expressed.refuse,
        )
        for name, expressed in OF_THE_TRAINER.items()
        if name not in _LEFT_OUT
    },
    "precision": Expressed("sft.yaml: bf16, fp16, dtype", OF_THE_TRAINER["precision"].refuse),
    "kernels": Expressed("-, but for `torch`", _refuse_kernels),
    "loss": Expressed("TRL's own, in tiles: *not proven there*"),
}


def differences(best: Best) -> tuple[str, ...]:
    """Return by what TRL's training differs from the one that was measured, a sentence each."""
    measured = "all logits at once" if best.candidate.loss == "full" else "sixteenths of a sequence"
    return (
        "TRL computes the loss in tiles of its own, with entropy and accuracy beside it, and never makes all logits; "
        f"{measured} were measured, so memory and speed of the loss are others",
    )


def export(best: Best) -> dict[str, str]:
    """Return the files that `sh launch.sh` trains from. Raises CannotExport."""
    refuse(best, "trl", FIELDS, {"model": refuse_task(best), "gpus": refuse_ranks(best)})
    return yaml_files(
        best, "sft.yaml", _arguments(best), typed="trl sft --config sft.yaml",
        program="-m trl.scripts.sft --config sft.yaml", rows="tokens",
    )  # fmt: skip


def _arguments(best: Best) -> dict[str, Any]:
    """Return every argument that sets memory, also where TRL's default would do: its defaults are not transformers'."""
    candidate = best.candidate
    attention = best.attention if candidate.attention == "sdpa" else candidate.attention
    return {
        "model_name_or_path": "model",
        "dtype": "bfloat16" if candidate.precision == "bf16-pure" else "float32",
        "attn_implementation": attention or "sdpa",
        "dataset_name": "data",
        **trainer_arguments(best),
        "max_length": best.seq_len,
        "packing": False,
        "eval_packing": False,
        "padding_free": False,
        "loss_type": "nll",
        "activation_offloading": False,
        "use_peft": False,
        "load_in_4bit": False,
        "load_in_8bit": False,
        "use_liger_kernel": False,
        "torch_compile": False,
        "auto_find_batch_size": False,
        "eval_strategy": "no",
        "remove_unused_columns": True,
    }
