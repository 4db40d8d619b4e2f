"""Export to accelerate: its configuration file, and a training script that runs what it says."""

from __future__ import annotations

import io
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import SingleQuotedScalarString

from autotune.exports.fields import Expressed, not_expressed, refuse
from autotune.exports.shared import (
    ALLOCATOR,
    launch_files,
    model_files,
    pretty,
    refuse_checkpointing,
    refuse_model,
    refuse_precision,
    refuse_prefetch,
    refuse_ranks,
    script,
)
from autotune.run.best import Best

PACKAGE = "accelerate"
"""What has to be installed to train from the files."""


def _refuse_sharding(best: Best) -> str | None:
    return None if best.candidate.sharding == "ddp" else not_expressed(best, "sharding")


FIELDS = {
    "precision": Expressed("accelerate_config.yaml: mixed_precision", refuse_precision),
    "tf32": Expressed("training.json: tf32 (no effect on a cpu)"),
    "attention": Expressed("settings.json: attention"),
    "checkpointing": Expressed("training.json: checkpointing", refuse_checkpointing),
    "num_workers": Expressed("training.json: num_workers"),
    "pin_memory": Expressed("training.json: pin_memory"),
    "prefetch_factor": Expressed("training.json: prefetch_factor", refuse_prefetch),
    "kernels": Expressed("training.json: kernels"),
    "optimizer": Expressed("training.json: optimizer"),
    "optimizer_kernel": Expressed("training.json: optimizer_kernel"),
    "sharding": Expressed("training.json: sharding, of `ddp` alone", _refuse_sharding),
    "expandable_segments": Expressed(ALLOCATOR),
    "max_split_size": Expressed(ALLOCATOR),
    "micro_batch": Expressed("training.json: micro_batch"),
}


MIXED = ("bf16", "fp16", "fp8")
"""Precisions that are accelerate's too, by the same name; what it calls `no` casts nothing."""


def export(best: Best) -> dict[str, str]:
    """Return the files that `sh launch.sh` trains from. Raises CannotExport."""
    refuse(
        best,
        "accelerate",
        FIELDS,
        {"model": refuse_model(best), "gpus": refuse_ranks(best), "nodes": _refuse_nodes(best)},
    )
    training = {
        "micro_batch": best.candidate.micro_batch,
        "accumulation_steps": best.accumulation.steps,
        "checkpointing": best.candidate.checkpointing,
        "sharding": best.candidate.sharding,
        "optimizer": best.candidate.optimizer,
        "kernels": best.candidate.kernels,
        # fp8 is for the linear layers within.
        "blocks": (best.facts.block_class or "").split(","),
        "optimizer_kernel": best.candidate.optimizer_kernel,
        "tf32": best.candidate.tf32 and best.device.kind == "cuda",
        "num_workers": best.candidate.num_workers,
        "pin_memory": best.candidate.pin_memory,
        "prefetch_factor": best.candidate.prefetch_factor if best.candidate.num_workers else None,
        "seed": best.seed,
    }
    command = "-m accelerate.commands.launch --config_file accelerate_config.yaml train.py"
    return {
        "accelerate_config.yaml": _config(best),
        **_launch(best, command),
        "training.json": pretty(training),
        **model_files(best),
        "train.py": script("accelerate_train.py"),
    }


def _refuse_nodes(best: Best) -> str | None:
    if best.nodes == 1:
        return None
    return "accelerate wants each machine's own configuration file. Use --to native or --to transformers"


def _config(best: Best) -> str:
    several = best.gpus > 1
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if several else "NO",
        "num_processes": best.gpus,
        "num_machines": 1,
        "machine_rank": 0,
        "mixed_precision": best.candidate.precision if best.candidate.precision in MIXED else "no",
        # With use_cpu and several processes, accelerate starts one; see launch.sh for what it heeds.
        "use_cpu": best.device.kind == "cpu" and not several,
        "main_training_function": "main",
        "debug": False,
    }
    # Quoted, because older YAML reads NO and no as false, and accelerate's reader is one of that kind.
    quoted = {key: SingleQuotedScalarString(v) if isinstance(v, str) else v for key, v in values.items()}
    text = io.StringIO()
    YAML().dump(quoted, text)
    return text.getvalue()


def _launch(best: Best, command: str) -> dict[str, str]:
    if best.device.kind == "cpu" and best.gpus > 1:
        best = best.model_copy(update={"variables": {**best.variables, "ACCELERATE_USE_CPU": "true"}})
    return launch_files(best, command)
