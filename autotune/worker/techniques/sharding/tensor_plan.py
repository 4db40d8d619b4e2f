"""What a model's plan for tensor parallelism says: which modules are cut over the ranks, and how."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from autotune.worker.errors import CannotRun

COLUMNS = ("colwise", "colwise_gather_output", "embedding_colwise")
ROWS = ("rowwise", "rowwise_split_input", "embedding_rowwise")
SUMMED = "replicated_with_grad_allreduce"
"""The style of a module that is whole on every rank, but sees only that rank's heads: its gradients are summed."""
_NUMBERS = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "hidden_size", "vocab_size")
"""Settings that the ranks have to divide: no head is cut, and all slices of a matrix are of one size."""


def tensor_plan(model: nn.Module) -> dict[str, str]:
    """Return the style of every module that the plan names, by its full name: COLUMNS, ROWS or SUMMED.

    The input embeddings are cut too, whether the release of transformers plans that or not: by columns, so that each
    rank has the gradients of its own; by rows where they are the output's, which is cut so. Raises CannotRun where the
    model ships no plan, or one with a style that torch has no counterpart of.
    """
    plan = getattr(model, "tp_plan", None)
    name = type(model).__name__
    if not plan:
        raise CannotRun(
            "tensor_parallel", "context", f"transformers ships no plan for tensor parallelism with {name}"
        )
    unknown = set(plan.values()) - {*COLUMNS, *ROWS, SUMMED}
    if unknown:
        raise CannotRun(
            "tensor_parallel",
            "context",
            f"transformers' plan for tensor parallelism of {name} has the style {', '.join(sorted(unknown))}, of which "
            "torch's parallel styles have no counterpart",
        )
    found: dict[str, str] = {}
    for part, module in model.named_modules():
        style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", part))
        if style is None:
            continue
        if style != SUMMED and not isinstance(module, nn.Linear | nn.Embedding):
            raise CannotRun(
                "tensor_parallel",
                "context",
                f"{name}'s plan cuts {part}, a {type(module).__name__}, which torch cannot",
            )
        found[part] = style
    embedding: Any = getattr(model, "get_input_embeddings", lambda: None)()
    if isinstance(embedding, nn.Embedding):
        tied = any(
            module.weight is embedding.weight for module in model.modules() if isinstance(module, nn.Linear)
        )
        where = next(part for part, module in model.named_modules() if module is embedding)
        found[where] = "embedding_rowwise" if tied else "embedding_colwise"
    return found


def divided_numbers(config: Any) -> dict[str, int]:
    """Return the settings that the ranks of tensor parallelism have to divide, by their names."""
    text = config.get_text_config()
    values = {name: getattr(text, name, None) for name in _NUMBERS}
    return {name: value for name, value in values.items() if isinstance(value, int)}
