"""Train a part of the model: the rest keeps its weights, and has neither gradients nor optimizer state."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from autotune.errors import InputError, nearest
from autotune.worker.experts import choose, experts_in

_MEMBERS = re.compile(r"(?P<of>.+)\[(?P<numbers>[0-9, -]+)\]")
"""A pattern that ends in numbers of members: `model.layers.3.mlp.experts[0,5]`, `*.experts[0-3]`."""


def freeze_others(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze every parameter that no pattern names.

    A pattern is the name of a parameter or of a module, as `named_parameters` has them, with `*` for any text; after
    the name of a layer's experts, or of a list of modules, numbers in brackets choose among them. Raises InputError for
    those that name nothing.
    """
    named = list(model.named_parameters(remove_duplicate=False))  # tied ones have several names
    names = [name for name, _ in named]
    problems: list[str] = []
    plain: list[str] = []
    chosen: dict[str, set[int]] = {}
    for pattern in patterns:
        try:
            members = list(_members(model, pattern))
        except InputError as error:
            problems += error.problems
            continue
        for module, number in members:
            if experts_in(model.get_submodule(module)) is None:
                plain.append(f"{module}.{number}")
            else:
                chosen.setdefault(module, set()).add(number)
        if members:
            continue
        plain.append(pattern)
        if not any(_names(pattern, name) for name in names):
            problems.append(f"--train {pattern}: {_hint(model, pattern)}")
    if problems:
        raise InputError(problems, about="train")
    trained = {parameter for name, parameter in named if any(_names(pattern, name) for pattern in plain)}
    for name, experts in chosen.items():
        module = model.get_submodule(name)
        if not trained.issuperset(module.parameters(recurse=False)):
            trained.update(choose(module, tuple(sorted(experts))))
    for parameter in model.parameters():
        parameter.requires_grad_(parameter in trained)


def _members(model: nn.Module, pattern: str) -> Iterator[tuple[str, int]]:
    """Return (module, number) of each member that a pattern chooses by numbers; nothing for any other pattern.

    Brackets hold a set of characters too where no experts and no list of modules stand before them. Raises InputError
    for a number that is too large.
    """
    match = _MEMBERS.fullmatch(pattern)
    if match is None:
        return
    for name, module in model.named_modules():
        if not fnmatchcase(name, match["of"]):
            continue
        count = _count(module)
        if count is None:
            continue
        for number in _numbers(pattern, match["numbers"]):
            if number >= count:
                raise InputError(f"--train {pattern}: {name} has members 0 to {count - 1}, and no {number}")
            yield name, number


def _hint(model: nn.Module, pattern: str) -> str:
    parts = {
        name: part for name, part in model.named_modules() if name and any(True for _ in part.parameters())
    }
    match = _MEMBERS.fullmatch(pattern)
    if match is None:
        return f"no parameter has that name; {nearest(pattern, parts)}"
    lists = [name for name, part in parts.items() if _count(part) is not None]
    return (
        "numbers in brackets choose of a layer's experts, or of a list of modules, and nothing of that name is one; "
        f"{nearest(match['of'], lists)}"
    )


def _count(module: nn.Module) -> int | None:
    return len(module) if isinstance(module, nn.ModuleList) else experts_in(module)


def _numbers(pattern: str, text: str) -> list[int]:
    """Return the numbers of `0,2-4`. Raises InputError for any other text."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise InputError(f"--train {pattern}: the numbers are written as 0,5 or 0-3")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


def _names(pattern: str, parameter: str) -> bool:
    return fnmatchcase(parameter, pattern) or fnmatchcase(parameter, f"{pattern}.*")
