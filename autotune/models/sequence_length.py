"""How long sequences are: as asked, and as the model takes them."""

from __future__ import annotations

from typing import Any

from autotune.specs import ModelSpec

LONGEST_DEFAULT = 1024
"""Sequence length where none is given and the model allows it: long enough to show what attention costs."""


def sequence_length(asked: int | None, model: ModelSpec, default: int = LONGEST_DEFAULT) -> int:
    """Return the tokens of a sequence: as asked, or the default. Raises ValueError beyond what the model takes."""
    longest = longest_sequence(model.config or {})
    if asked is None:
        return min(default, longest or default)
    if longest is not None and asked > longest:
        raise ValueError(f"{model.name} takes sequences of at most {longest} tokens, not {asked}")
    return asked


def longest_sequence(config: dict[str, Any]) -> int | None:
    """Return the longest sequence that a transformers configuration allows, or None where it sets no limit."""
    for key in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if isinstance(config.get(key), int):
            return int(config[key])
    return None
