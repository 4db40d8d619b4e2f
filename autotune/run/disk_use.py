"""What a configuration writes to the disk while it is proven."""

from __future__ import annotations

from typing import Literal

from autotune.memory.host_footprint import built_bytes, checkpoint_bytes, offloaded_bytes
from autotune.run.best import Best


def written_bytes(best: Best, kind: Literal["cuda", "cpu"]) -> int:
    """Return the bytes that a proof on a device of that kind may write: a checkpoint, and what lives in files."""
    candidate, facts = best.candidate, best.facts
    if best.model.command is not None:  # what it writes is its own
        return 0
    written = checkpoint_bytes(candidate, facts, best.gpus)
    if candidate.offload_place(kind) == "disk":
        written += best.gpus * offloaded_bytes(candidate, facts, best.gpus, best.nodes)
    if kind == "cpu":
        written += built_bytes(candidate, facts, best.gpus, best.model.source == "function", on_cpu=True)
    return written
