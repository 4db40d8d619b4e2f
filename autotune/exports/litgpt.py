"""Export to LitGPT 0.5: the YAML of `litgpt finetune_full`, of a Llama on one device, with an example checkpoint.

Its other way to train all of a model, `litgpt pretrain`, always compiles the model whole, which was not measured. On
several devices both shard by torch's FSDP1 and keep whole gradients over the micro-steps: nothing here measured that.
"""

from __future__ import annotations

from typing import Any

from autotune.exports.fields import Expressed, refuse
from autotune.exports.shared import (
    ALLOCATOR,
    launch_files,
    model_files,
    refuse_task,
    script,
    yaml_text,
)
from autotune.run.best import Best

PACKAGE = "litgpt"
"""What has to be installed to train from the files."""
STEPS = ("--train.max_steps", "2")
"""What has `launch.sh` end after two optimizer steps."""

MAKE_CHECKPOINT = '[ -e checkpoint ] || "$PYTHON" litgpt_inputs.py\n'
"""What `launch.sh` does first: LitGPT trains from checkpoints of its own kind."""

PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "bf16-pure": "bf16-true"}
"""LitGPT's names."""

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("torch.optim.AdamW", {"lr": 2e-4, "weight_decay": 0.01}),
    "adamw-8bit": ("bitsandbytes.optim.AdamW", {"lr": 2e-4, "weight_decay": 0.01, "optim_bits": 8}),
    "adafactor": ("transformers.Adafactor", {"lr": 2e-4, "scale_parameter": False, "relative_step": False}),
    "momentum": ("torch.optim.SGD", {"lr": 1e-3, "momentum": 0.9}),
    "sgd": ("torch.optim.SGD", {"lr": 1e-2}),
}
"""Classes and arguments, as they were measured; learning rate and decay are yours to choose."""


def _refuse_model(best: Best) -> str | None:
    if (reason := refuse_task(best)) is not None:
        return reason
    config = best.model.config or {}
    if config.get("model_type") != "llama":
        return "LitGPT has model code of its own, of which this export knows the Llama. Use --to native"
    if config.get("attention_bias") or config.get("mlp_bias"):
        return "LitGPT has biases in all linear layers of a block or in none. Use --to native"
    position = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if position.get("rope_type", "default") not in ("default", "llama3"):
        return "of scaled positions this export knows Llama 3's alone. Use --to native"
    return None


def _refuse_devices(best: Best) -> str | None:
    if best.gpus == best.candidate.tensor_parallel:  # one, or what is refused by that name
        return None
    return (
        "on several devices LitGPT shards by torch's FSDP1, checkpoints every block, and keeps whole gradients over "
        "the micro-steps: nothing of that was measured. Use --to torchtitan or --to native"
    )


def _only(values: tuple[str, ...], field: str, where: str, reason: str) -> Expressed:
    """Return a field of which LitGPT has these values."""
    return Expressed(where, lambda best: None if getattr(best.candidate, field) in values else reason)


FIELDS = {
    "precision": _only(
        tuple(PRECISIONS), "precision", "litgpt.yaml: precision",
        "LitGPT trains in float32 and bfloat16 alone. Use --to native",
    ),
    "tf32": Expressed("always on, which is told where it was off (no effect on a cpu)"),
    "attention": _only(
        ("sdpa",), "attention", "-, but for `sdpa`", "LitGPT calls torch's own attention alone. Use --to native"
    ),
    "checkpointing": _only(
        ("none",), "checkpointing", "-, but for `none`",
        "LitGPT checkpoints every block on several devices, and none on one. Use --to native",
    ),
    "num_workers": Expressed("litgpt.yaml: data.init_args.num_workers"),
    "loss": Expressed("LitGPT's own, of all logits in pieces: *not proven there*"),
    "optimizer": Expressed("litgpt.yaml: optimizer"),
    "optimizer_kernel": Expressed("litgpt.yaml: optimizer.init_args"),
    "expandable_segments": Expressed(ALLOCATOR),
    "max_split_size": Expressed(ALLOCATOR),
    "micro_batch": Expressed("litgpt.yaml: train.micro_batch_size"),
}  # fmt: skip


def differences(best: Best) -> tuple[str, ...]:
    """Return by what LitGPT's training differs from the one that was measured, a sentence each."""
    measured = "of all at once" if best.candidate.loss == "full" else "of sixteenths of a sequence"
    config = best.model.config or {}
    found = [
        "LitGPT trains model code of its own, and transformers' was measured",
        "it makes all logits and computes the loss of 128 tokens at a time, and the loss "
        f"{measured} was measured, so memory and speed of the loss are others",
        "it does not clip gradients, and with clipping was measured",
    ]
    if config.get("tie_word_embeddings"):
        apart = config.get("vocab_size", 0) * config.get("hidden_size", 0)
        found.append(
            f"its head is a matrix of its own, and the model's is its embedding: {apart:,} parameters more"
        )
    if best.device.kind == "cuda" and not best.candidate.tf32:
        found.append("it multiplies fp32 matrices in TF32, and full fp32 was measured")
    return tuple(found)


def export(best: Best) -> dict[str, str]:
    """Return the files that `sh launch.sh` trains from. Raises CannotExport."""
    refuse(best, "litgpt", FIELDS, {"model": _refuse_model(best), "gpus": _refuse_devices(best)})
    program = "-m litgpt finetune_full --config litgpt.yaml"
    about = (
        "Start it with launch.sh, or `litgpt finetune_full --config litgpt.yaml` under the variables that it sets.\n"
        "checkpoint and data are examples until you name your own."
    )
    samples = best.accumulation.steps * best.candidate.micro_batch
    return {
        "litgpt.yaml": yaml_text(_arguments(best), about),
        **launch_files(best, program, MAKE_CHECKPOINT),
        **model_files(best, count=samples, rows="text"),
        "make_inputs.py": script("make_inputs.py"),
        "litgpt_inputs.py": script("litgpt_inputs.py"),
    }


def _arguments(best: Best) -> dict[str, Any]:
    """Return every argument that sets memory: LitGPT evaluates, generates and saves by itself where nothing is said."""
    candidate = best.candidate
    return {
        "checkpoint_dir": "checkpoint",
        "out_dir": "outputs",
        "precision": PRECISIONS[candidate.precision],
        "devices": 1,
        "num_nodes": 1,
        "resume": False,
        "data": {
            "class_path": "litgpt.data.JSON",
            "init_args": {
                "json_path": "data",
                "mask_prompt": False,
                "prompt_style": {"class_path": "litgpt.prompts.Default"},
                "seed": best.seed,
                "num_workers": candidate.num_workers,
            },
        },
        "train": {
            "save_interval": None,
            "log_interval": 1,
            "global_batch_size": best.accumulation.steps * candidate.micro_batch,
            "micro_batch_size": candidate.micro_batch,
            "lr_warmup_steps": 1,
            "epochs": 10,
            "max_seq_length": best.seq_len,
        },
        "eval": {
            "interval": 1_000_000,
            "max_new_tokens": 1,
            "max_iters": 1,
            "initial_validation": False,
            "final_validation": False,
        },
        "optimizer": _optimizer(best),
        "logger_name": "csv",
        "seed": best.seed,
    }


def _optimizer(best: Best) -> dict[str, Any]:
    path, arguments = OPTIMIZERS[best.candidate.optimizer]
    kernel = best.candidate.optimizer_kernel
    by_torch = {"fused": kernel == "fused", "foreach": kernel == "foreach"}
    return {"class_path": path, "init_args": arguments | (by_torch if path.startswith("torch.") else {})}
