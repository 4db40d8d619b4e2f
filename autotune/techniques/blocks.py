"""The repeated transformer block that some techniques are done to."""

from __future__ import annotations

from autotune.candidate import Candidate
from autotune.techniques.axis import CheckFunction, Context


def no_block(doing: str) -> str:
    """Return the reason why a technique cannot be done to a model's blocks, of which none was found."""
    return f"no repeated transformer block was found to {doing}; name its class with --block-class"


def needs_block(axis: str, doing: str) -> CheckFunction:
    """Return the check of an axis all of whose values but `none` are done to blocks."""

    def check(candidate: Candidate, context: Context) -> str | None:
        model = context.model
        if getattr(candidate, axis) == "none" or model is None or model.block_class is not None:
            return None
        return no_block(doing)

    return check
