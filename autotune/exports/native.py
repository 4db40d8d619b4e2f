"""Export to autotune itself: `best.yaml`, and a script that trains with the very parts that were measured."""

from __future__ import annotations

from autotune.candidate import Candidate
from autotune.exports.fields import Expressed, refuse
from autotune.exports.shared import ALLOCATOR, launch_files, on_all_ranks, refuse_ranks, script
from autotune.run.best import Best

FIELDS = {
    **{name: Expressed("best.yaml: candidate") for name in Candidate.model_fields},
    "expandable_segments": Expressed(ALLOCATOR),
    "max_split_size": Expressed(ALLOCATOR),
    "garbage_collection_threshold": Expressed(f"best.yaml: candidate; {ALLOCATOR}"),
}


def export(best: Best) -> dict[str, str]:
    """Return the files that `sh launch.sh` trains from. Raises CannotExport."""
    refuse(best, "native", FIELDS, {"gpus": refuse_ranks(best)})
    return {
        "best.yaml": best.to_yaml(),
        **launch_files(best, on_all_ranks(best, "train.py")),
        "train.py": script("native_train.py"),
    }
