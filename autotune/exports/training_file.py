"""What exported scripts with a training loop of their own read: `training.json`, and which axes stand in it."""

from __future__ import annotations

from typing import Any

from autotune.exports.fields import Expressed
from autotune.exports.shared import (
    ALLOCATOR,
    launch_files,
    model_files,
    on_all_ranks,
    pretty,
    refuse_prefetch,
    script,
)
from autotune.run.best import Best

FIELDS = {
    "tf32": Expressed("training.json: tf32 (no effect on a cpu)"),
    "attention": Expressed("settings.json: attention"),
    "num_workers": Expressed("training.json: num_workers"),
    "prefetch_factor": Expressed("training.json: prefetch_factor", refuse_prefetch),
    "pin_memory": Expressed("training.json: pin_memory"),
    "kernels": Expressed("training.json: kernels"),
    "optimizer_kernel": Expressed("training.json: optimizer_kernel"),
    "expandable_segments": Expressed(ALLOCATOR),
    "max_split_size": Expressed(ALLOCATOR),
}
"""What the file or the start script says, whatever library trains."""


def loop_files(best: Best, program: str, **more: Any) -> dict[str, str]:
    """Return `training.json` with `more` in it, the script that reads it (`program` of `scripts/`), and its model."""
    candidate = best.candidate
    training = {
        **more,
        "checkpointing": candidate.checkpointing,
        "optimizer": candidate.optimizer,
        "optimizer_kernel": candidate.optimizer_kernel,
        "kernels": candidate.kernels,
        "tf32": candidate.tf32 and best.device.kind == "cuda",
        "num_workers": candidate.num_workers,
        "pin_memory": candidate.pin_memory,
        "prefetch_factor": candidate.prefetch_factor if candidate.num_workers else None,
        "seed": best.seed,
    }
    return {
        "training.json": pretty(training),
        **launch_files(best, on_all_ranks(best, "train.py")),
        **model_files(best),
        "train.py": script(program),
    }
