"""Modules that torch computes in several operators where a fused one would keep less memory."""

from __future__ import annotations

from torch import nn

from autotune.candidate import Attention
from autotune.timeline.timeline import Unfused

COMPOSED = {
    "NewGELUActivation", "FastGELUActivation", "QuickGELUActivation", "AccurateGELUActivation", "LaplaceActivation",
}  # fmt: skip
"""Classes of `transformers.activations` whose forward is several operators, most of which keep a result."""


def unfused_modules(model: nn.Module, asked: Attention, reported: str | None) -> dict[str, Unfused]:
    """Return such modules by name: activation functions, and the attention of a model that has no other than eager.

    `asked` is the candidate's attention, `reported` what the model says it runs.
    """
    eager = reported == "eager" and asked != "eager"
    found: dict[str, Unfused] = {}
    attention: list[str] = []
    for name, module in model.named_modules():
        kind = type(module).__name__
        if eager and kind.endswith("Attention"):
            attention.append(f"{name}.")
        if kind in COMPOSED:
            found[name] = "activation"
        elif f"{name}.".startswith(tuple(attention)) and not isinstance(module, nn.Linear):
            found[name] = "attention"
    return found
