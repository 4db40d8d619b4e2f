"""The source files that a module of this package depends on, found by reading them: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import autotune

_ROOT = Path(autotune.__file__).parent
_NAME = autotune.__name__
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of a statement that hold other statements; expressions, which are most of a tree, import nothing."""


def import_closure(module: str) -> dict[str, Path]:
    """Return the source of a module and of every module of this package that it imports, by name, and so on.

    Imports inside functions count, those for type checkers alone do not. A module runs its packages' `__init__` too,
    and a package that is a program (`python -m`) its `__main__`. Names that are put together at run time are not seen.
    """
    found: dict[str, Path] = {}
    waiting = [module, f"{module}.__main__"]
    while waiting:
        name = waiting.pop()
        path = _source(name)
        if path is None or name in found:
            continue
        found[name] = path
        waiting += [name.rpartition(".")[0], *_imported(ast.parse(path.read_bytes()).body)]
    assert module in found, f"there is no module {module}"
    return found


def _source(name: str) -> Path | None:
    """Return a module's file; None for what is no module of this package, such as a name that one defines."""
    first, *rest = name.split(".")
    if first != _NAME:
        return None
    path = _ROOT.joinpath(*rest)
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


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
