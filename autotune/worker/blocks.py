"""Find the repeated transformer block of any model: the unit that checkpointing and sharding wrap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from autotune.errors import InputError, nearest

SIMILAR = 4
"""Two classes of blocks belong together (encoder and decoder layers) when their mean sizes differ by less."""


@dataclass(frozen=True)
class Blocks:
    """The repeated blocks of a model, in the order of `named_modules`."""

    class_name: str
    """Name of their class; several classes (encoder and decoder layers) are joined by commas."""
    modules: tuple[nn.Module, ...]


def find_blocks(model: nn.Module, class_name: str | None = None) -> Blocks | None:
    """Return the blocks that hold most of the model's parameters; None where nothing repeats.

    A block is never a leaf (checkpointing a single linear layer saves nothing) and never inside another
    block. Members of a `ModuleList` or `Sequential` are preferred; a model that keeps its blocks as plain
    attributes is searched for the repeated class with most parameters. Embedding tables do not count: they
    would make a whole encoder look more important than its layers. `class_name` (one name, or several joined
    by commas) overrides the search; InputError names the classes there are when none has that name.
    """
    if class_name is not None:
        return _by_name(model, class_name)
    listed = _group(module for parent in model.modules() if isinstance(parent, nn.ModuleList | nn.Sequential)
                    for module in parent.children() if _is_block(module))  # fmt: skip
    anywhere = {kind: found for kind, found in _group(m for m in model.modules() if _is_block(m)).items()
                if len(found) > 1 and kind is not type(model)}  # fmt: skip
    repeated = {kind: found for kind, found in listed.items() if len(found) > 1}
    # One layer in a list is a model cut short for a test, or one layer applied many times (ALBERT).
    best = _most(repeated) or _most(listed)
    elsewhere = _most(anywhere)
    if best is None or (elsewhere is not None and _size(elsewhere) > 2 * _size(best)):
        return None if elsewhere is None else Blocks(type(elsewhere[0]).__name__, tuple(elsewhere))
    return _with_similar(model, best, repeated.values())


def _by_name(model: nn.Module, class_name: str) -> Blocks:
    wanted = [name.strip() for name in class_name.split(",")]
    classes = {
        type(module).__name__ for module in model.modules() if module is not model and _is_block(module)
    }
    missing = [name for name in wanted if name not in classes]
    if missing:
        raise InputError(
            (f"the model has no block of class {name!r}; {nearest(name, classes)}" for name in missing),
            about="block_class",
        )
    found = _outermost(module for module in model.modules() if type(module).__name__ in wanted)
    return Blocks(",".join(wanted), tuple(found))


def _with_similar(model: nn.Module, best: list[nn.Module], others: Iterable[list[nn.Module]]) -> Blocks:
    """Join the best class with the classes of like size beside it: encoder and decoder, or hybrid layers."""
    inside = {id(part) for block in best for part in block.modules()}
    mean = _size(best) / len(best)
    joined = list(best)
    for blocks in others:
        parts = {id(part) for block in blocks for part in block.modules()}
        similar = mean / SIMILAR < _size(blocks) / len(blocks) < mean * SIMILAR
        if similar and parts.isdisjoint(inside):
            joined += blocks
            inside |= parts
    order = {id(module): position for position, module in enumerate(model.modules())}
    joined.sort(key=lambda module: order[id(module)])
    return Blocks(",".join(dict.fromkeys(type(module).__name__ for module in joined)), tuple(joined))


def _is_block(module: nn.Module) -> bool:
    containers = (nn.ModuleList, nn.ModuleDict)  # they have no forward of their own to wrap
    return (
        not isinstance(module, containers)
        and any(True for _ in module.children())
        and any(True for _ in module.parameters())
    )


def _group(modules: Iterable[nn.Module]) -> dict[type[nn.Module], list[nn.Module]]:
    groups: dict[type[nn.Module], list[nn.Module]] = defaultdict(list)
    for module in modules:
        groups[type(module)].append(module)
    return {kind: _outermost(found) for kind, found in groups.items()}


def _outermost(modules: Iterable[nn.Module]) -> list[nn.Module]:
    unique = list({id(module): module for module in modules}.values())
    nested = {id(part) for module in unique for part in module.modules() if part is not module}
    return [module for module in unique if id(module) not in nested]


def _most(groups: dict[type[nn.Module], list[nn.Module]]) -> list[nn.Module] | None:
    """Return the group with most parameters; of equals the one found first, which is the outer one."""
    return max(groups.values(), key=_size, default=None)


def _size(modules: list[nn.Module]) -> int:
    """Count the parameters of the modules, each once, without embedding tables."""
    parts = {id(part): part for module in modules for part in module.modules()}.values()
    tables = {id(part.weight) for part in parts if isinstance(part, nn.Embedding)}
    # Each part's own: `parameters()` would go through all parts of each module, under their names.
    unique = {id(p): p for part in parts for p in part._parameters.values() if p is not None}
    return sum(parameter.numel() for key, parameter in unique.items() if key not in tables)
