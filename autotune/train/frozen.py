"""Train a part of the model: the rest keeps its weights, and has neither gradients nor optimizer state."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from autotune.errors import InputError, nearest


def freeze_others(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze every parameter that no pattern names.

    A pattern is the name of a parameter or of a module, as `named_parameters` has them, with `*` for any text. Raises
    InputError for those that name nothing.
    """
    named = list(model.named_parameters(remove_duplicate=False))  # tied ones have several names
    names = [name for name, _ in named]
    unknown = [pattern for pattern in patterns if not any(_names(pattern, name) for name in names)]
    if unknown:
        modules = {
            name for name, part in model.named_modules() if name and any(True for _ in part.parameters())
        }
        raise InputError(
            f"--train {pattern}: no parameter has that name; {nearest(pattern, modules)}"
            for pattern in unknown
        )
    chosen = {parameter for name, parameter in named if any(_names(pattern, name) for pattern in patterns)}
    for parameter in model.parameters():
        parameter.requires_grad_(parameter in chosen)


def _names(pattern: str, parameter: str) -> bool:
    return fnmatchcase(parameter, pattern) or fnmatchcase(parameter, f"{pattern}.*")
