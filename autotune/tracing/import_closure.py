"""The source files that a module of some packages depends on, found by reading them: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import autotune

_OWN = {autotune.__name__: Path(autotune.__file__).parent}
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of a statement that hold other statements; expressions, which are most of a tree, import nothing."""


def import_closure(module: str, packages: Mapping[str, Path] = _OWN) -> dict[str, Path]:
    """Return the source of a module and of every module of `packages` that it imports, by name, and so on.

    Imports inside functions count, those for type checkers alone do not. A module runs its packages' `__init__` too,
    and a package that is a program (`python -m`) its `__main__`. Names that are put together at run time are not seen.
    `packages` are the folders of top-level packages, by name; this one alone unless others are given.
    """
    found: dict[str, Path] = {}
    waiting = [module, f"{module}.__main__"]
    while waiting:
        name = waiting.pop()
        path = _source(name, packages)
        if path is None or name in found:
            continue
        found[name] = path
        waiting += [name.rpartition(".")[0], *_imports(path.read_bytes())]
    assert module in found, f"there is no module {module}"
    return found


def _source(name: str, packages: Mapping[str, Path]) -> Path | None:
    """Return a module's file; None for what is no module of the packages, such as a name that one defines."""
    first, *rest = name.split(".")
    if first not in packages:
        return None
    path = packages[first].joinpath(*rest)
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


@cache  # by content: several closures share most of their files, and parsing is what takes long
def _imports(source: bytes) -> tuple[str, ...]:
    return tuple(_imported(ast.parse(source).body))


def _imported(body: Iterable[ast.AST]) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=rest):
                yield from _imported(rest)
            case _:
                for part in _BLOCKS:
                    yield from _imported(getattr(statement, part, ()))
