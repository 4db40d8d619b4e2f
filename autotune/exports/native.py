"""Export to autotune itself: `best.yaml`, and a script that trains with the very parts that were measured."""

from __future__ import annotations

from autotune.exports.fields import Expressed, refuse
from autotune.exports.shared import launch_script, on_all_ranks, refuse_ranks, script
from autotune.run.best import Best

_FILE = Expressed("best.yaml: candidate")
FIELDS = {
    "precision": _FILE,
    "tf32": _FILE,
    "attention": _FILE,
    "checkpointing": _FILE,
    "adapters": _FILE,
    "sequences": _FILE,
    "workers": _FILE,
    "pin_memory": _FILE,
    "prefetch": _FILE,
    "loss": _FILE,
    "compile": _FILE,
    "memory_budget": _FILE,
    "kernels": _FILE,
    "activation_offload": _FILE,
    "offload": _FILE,
    "offload_to": _FILE,
    "optimizer": _FILE,
    "optimizer_kernel": _FILE,
    "optimizer_in_backward": _FILE,
    "sharding": _FILE,
    "reduce_dtype": _FILE,
    "engine": _FILE,
    "tensor_parallel": _FILE,
    "expandable_segments": Expressed("launch.sh: PYTORCH_ALLOC_CONF (no effect on a cpu)"),
    "split_limit": Expressed("launch.sh: PYTORCH_ALLOC_CONF (no effect on a cpu)"),
    "collect_above": Expressed("best.yaml: candidate; launch.sh: PYTORCH_ALLOC_CONF (no effect on a cpu)"),
    "micro_batch": _FILE,
}


def export(best: Best) -> dict[str, str]:
    """Return the files that `sh launch.sh` trains from. Raises CannotExport."""
    refuse(best, "native", FIELDS, {"gpus": refuse_ranks(best)})
    return {
        "best.yaml": best.to_yaml(),
        "launch.sh": launch_script(best, on_all_ranks(best, "train.py")),
        "train.py": script("native_train.py"),
    }
