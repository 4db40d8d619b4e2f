"""The columns of trials as people, pandas and files get them, each with its type."""

from __future__ import annotations

from typing import Literal

from autotune.candidate import AXES, Candidate

Type = Literal["text", "whole", "real", "yes or no", "list of real"]

_TYPES: dict[Type, str] = {
    "whole": (
        "target_tokens seq_len gpus nodes number turn budget allocated reserved device_peak peak micro_batch "
        "tensor_parallel num_workers prefetch_factor"
    ),
    "real": "global_step tokens_per_second half_width seconds",
    "yes or no": "fits passed",
    "list of real": "step_seconds",
}
_NAMED: dict[str, Type] = {name: kind for kind, names in _TYPES.items() for name in names.split()}

COLUMNS: tuple[str, ...] = (
    "sweep", "night", "cell", "run", "model", "model_digest", "target_tokens", "seq_len", "gpus", "nodes",
    "device_kind", "hardware", "driver",
    "kind", "number", "turn", "time", "environment", "candidate", "reuse_key", "outcome", "phase",
    "reason", "budget", "allocated", "reserved", "device_peak", "peak", "fits", "passed", "global_step",
    "tokens_per_second", "half_width", "seconds", "reused", "title", "step_seconds", "evidence", "torch",
    "transformers", "micro_batch", *AXES,
)  # fmt: skip
"""In their order. Memory is in bytes, times are in seconds; `half_width` is of the 95% interval of the speed."""


def type_of(column: str) -> Type:
    """Return the type of a column; text where it is none of the others."""
    if column in AXES and isinstance(Candidate.model_fields[column].default, bool):
        return "yes or no"
    return _NAMED.get(column, "text")
