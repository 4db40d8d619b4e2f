"""Export to transformers: arguments for its Trainer, and a training script that loads them."""

from __future__ import annotations

from typing import Any

from autotune.candidate import Candidate
from autotune.exports.fields import Expressed, not_expressed, refuse
from autotune.exports.shared import (
    ALLOCATOR,
    launch_files,
    model_files,
    on_all_ranks,
    pretty,
    refuse_checkpointing,
    refuse_model,
    refuse_packing,
    refuse_precision,
    refuse_prefetch,
    refuse_ranks,
    script,
)
from autotune.run.best import Best
from autotune.techniques.deepspeed_config import deepspeed_settings


def _refuse_kernel(best: Best) -> str | None:
    """Return why the optimizer's implementation cannot be expressed, or None."""
    if best.candidate.optimizer_kernel == "fused":
        return None
    if best.device.kind == "cuda" and best.candidate.offload == "none":
        return None
    return (
        "the Trainer can only leave it to torch, which takes foreach for parameters on a GPU, and a plain loop "
        "elsewhere. Use --to native"
    )


def _refuse_precision(best: Best) -> str | None:
    if best.candidate.precision == "fp8":
        return "the Trainer's arguments have no fp8. Use --to accelerate or --to native"
    return refuse_precision(best)


_ZERO = "deepspeed.json: zero_optimization, of DeepSpeed's alone"
FIELDS = {
    "precision": Expressed("training_arguments.json: bf16, fp16", _refuse_precision),
    "tf32": Expressed("training_arguments.json: tf32 (no effect on a cpu)"),
    "attention": Expressed("settings.json: attention"),
    "checkpointing": Expressed("training_arguments.json: gradient_checkpointing", refuse_checkpointing),
    "sequences": Expressed("settings.json: sequences; rows.json", refuse_packing),
    "num_workers": Expressed("training_arguments.json: dataloader_num_workers"),
    "pin_memory": Expressed("training_arguments.json: dataloader_pin_memory"),
    "prefetch_factor": Expressed("training_arguments.json: dataloader_prefetch_factor", refuse_prefetch),
    "kernels": Expressed("training_arguments.json: use_liger_kernel"),
    "offload": Expressed(_ZERO, lambda best: not_expressed(best, "offload")),
    "offload_to": Expressed(
        _ZERO,
        lambda best: not_expressed(best, "offload_to"),
    ),
    "optimizer": Expressed("training_arguments.json: optim"),
    "optimizer_kernel": Expressed("training_arguments.json: optim; SGD's is torch's choice", _refuse_kernel),
    "sharding": Expressed(
        _ZERO,
        lambda best: not_expressed(best, "sharding"),
    ),
    "engine": Expressed("deepspeed.json"),
    "expandable_segments": Expressed(ALLOCATOR),
    "max_split_size": Expressed(ALLOCATOR),
    "micro_batch": Expressed("training_arguments.json: per_device_train_batch_size"),
}

OPTIMIZERS = {
    "adamw": {"optim": "adamw_torch_fused", "learning_rate": 2e-4, "weight_decay": 0.01},
    "adamw-8bit": {"optim": "adamw_bnb_8bit", "learning_rate": 2e-4, "weight_decay": 0.01},
    "adafactor": {"optim": "adafactor", "learning_rate": 2e-4, "weight_decay": 0.0},
    "momentum": {"optim": "sgd", "optim_args": "momentum=0.9", "learning_rate": 1e-3, "weight_decay": 0.0},
    "sgd": {"optim": "sgd", "learning_rate": 1e-2, "weight_decay": 0.0},
}
"""The optimizers as they were measured; learning rate and decay are yours to choose."""


def export(best: Best) -> dict[str, str]:
    """Return the files that `sh launch.sh` trains from. Raises CannotExport."""
    refuse(best, "transformers", FIELDS, {"model": refuse_model(best), "gpus": refuse_ranks(best)})
    return {
        "training_arguments.json": pretty(trainer_arguments(best)),
        **launch_files(best, on_all_ranks(best, "train.py")),
        **deepspeed_file(best),
        **model_files(best),
        "train.py": script("transformers_train.py"),
    }


def _optimizer(candidate: Candidate) -> dict[str, Any]:
    """Return the arguments of the optimizer; without `fused` torch takes foreach on a GPU."""
    arguments = dict(OPTIMIZERS[candidate.optimizer])
    if candidate.optimizer == "adamw" and candidate.optimizer_kernel == "foreach":
        arguments["optim"] = "adamw_torch"
    return arguments


def deepspeed_file(best: Best) -> dict[str, str]:
    """Return DeepSpeed's configuration, where it shards; what is `auto` in it follows the Trainer's arguments."""
    candidate = best.candidate
    if candidate.engine == "torch":
        return {}
    values = deepspeed_settings(candidate, best.facts.hidden, pin_memory=best.device.kind == "cuda") | {
        "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    }  # fmt: skip
    return {"deepspeed.json": pretty(values)}


def trainer_arguments(best: Best) -> dict[str, Any]:
    """Return the arguments of `TrainingArguments`."""
    candidate = best.candidate
    arguments: dict[str, Any] = {
        "output_dir": "checkpoints",
        "per_device_train_batch_size": candidate.micro_batch,
        "per_device_eval_batch_size": (best.proof and best.proof.evaluation_micro_batch)
        or best.evaluation_micro_batch
        or candidate.micro_batch,
        "gradient_accumulation_steps": best.accumulation.steps,
        "bf16": candidate.precision == "bf16",
        "fp16": candidate.precision == "fp16",
        "gradient_checkpointing": candidate.checkpointing == "full",
        **_optimizer(candidate),
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "seed": best.seed,
        "use_cpu": best.device.kind == "cpu",
        "dataloader_drop_last": True,
        "dataloader_num_workers": candidate.num_workers,
        "dataloader_pin_memory": candidate.pin_memory,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
    }
    if candidate.num_workers:  # the Trainer refuses the name itself without workers
        arguments["dataloader_prefetch_factor"] = candidate.prefetch_factor
    if candidate.checkpointing == "full":
        arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if candidate.tf32 and best.device.kind == "cuda":
        # The Trainer refuses the name itself where there is no GPU.
        arguments["tf32"] = True
    if candidate.kernels == "liger":
        arguments["use_liger_kernel"] = True
    if candidate.engine == "deepspeed":
        arguments["deepspeed"] = "deepspeed.json"
    return arguments
