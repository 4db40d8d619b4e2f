"""Find a model that is a function of the user's own, without importing a line of the user's code.

Importing would bring torch into the tuner and run whatever the module does; only workers do that.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import warnings
from pathlib import Path

from autotune.errors import InputError, nearest
from autotune.units import MIB
from autotune.user_files import read_bytes, user_path

RESERVED = sys.stdlib_module_names | {"autotune", "torch", "transformers", "numpy"}
"""Modules that a worker has imported already: a user's file of the same name would not be seen."""


LARGEST = 8 * MIB
"""Bytes of a file of Python."""


def locate(name: str, base: Path) -> tuple[str, str | None]:
    """Return `module:function` and the folder to put first on sys.path (None where none is needed).

    `name` is `package.module:function` (looked for in `base` first, then where Python looks), or
    `path/to/file.py:function`, relative to `base`. Raises InputError when the module does not exist, does
    not parse, or does not define the function.
    """
    module, _, function = name.rpartition(":")
    if not function.isidentifier() or not module:
        raise InputError(f"model {name!r}: write it like package.module:function or path/to/file.py:function")
    if module.endswith(".py") or "/" in module:
        return _locate_file(module, function, base)
    return _locate_module(module, function, base)


def code_digest(called: str, folder: str | None) -> str | None:
    """Return the SHA-256 of the file that defines `module:function`; None where there is no such file (any more).

    What that file imports is not in it: the digest tells that the model's own code was edited, not that nothing was.
    """
    spec = _find_spec(called.rpartition(":")[0], folder)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    return hashlib.sha256(
        read_bytes(Path(spec.origin), f"the model's file {spec.origin}", LARGEST)
    ).hexdigest()


def _locate_file(written: str, function: str, base: Path) -> tuple[str, str]:
    file = _real(base / user_path(written, "--model"))
    if file.suffix != ".py" and not os.path.exists(file):
        file = Path(f"{file}.py")
    if not os.path.isfile(file):
        raise InputError(f"the model's file {file} does not exist")
    module = file.stem
    if not module.isidentifier():
        raise InputError(
            f"the model's file {file} cannot be imported under that name; name it like my_model.py"
        )
    if module in RESERVED:
        raise InputError(f"the model's file {file} has the name of a library ({module}); rename it")
    _check_defines(file, function)
    return f"{module}:{function}", str(file.parent)


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # links in a circle
        return path


def _locate_module(module: str, function: str, base: Path) -> tuple[str, str | None]:
    if not all(part.isidentifier() for part in module.split(".")):
        raise InputError(f"{module!r} is not the name of a module; write it like package.module:function")
    for folder in (str(base.resolve()), None):
        spec = _find_spec(module, folder)
        if spec is not None:
            if folder and module.partition(".")[0] in RESERVED:
                raise InputError(f"module {module} in {folder} has the name of a library; rename it")
            if spec.origin and spec.origin.endswith(".py"):
                _check_defines(Path(spec.origin), function)
            return f"{module}:{function}", folder
    raise InputError(
        f"module {module} is neither in {base.resolve()} nor installed; start autotune in the folder that "
        f"holds it, or write path/to/{module.rpartition('.')[2]}.py:{function}"
    )


def _find_spec(module: str, folder: str | None) -> importlib.machinery.ModuleSpec | None:
    """Find a dotted module as an import would, except that no parent package is executed."""
    path = [folder] if folder else [entry for entry in sys.path if entry]
    spec = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return spec


def _check_defines(file: Path, function: str) -> None:
    content = read_bytes(file, f"the model's file {file}", LARGEST)
    try:
        with warnings.catch_warnings(action="ignore"):  # of the user's own code: an escape that is none
            tree = ast.parse(content, str(file))
    except SyntaxError as error:
        raise InputError(f"{file}, line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # the parser's stack has an end, too
        raise InputError(f"the model's file {file} is not Python: {error or 'it nests too deeply'}") from None
    callables, others, complete = _top_level(tree)
    if complete and function not in callables | others:
        hint = nearest(function, callables) if callables else "it defines no function"
        raise InputError(f"{file} does not define {function}; {hint}")


def _top_level(tree: ast.Module) -> tuple[set[str], set[str], bool]:
    """Return what a module defines: functions and classes, other names, and whether that is all for sure."""
    callables: set[str] = set()
    others: set[str] = set()
    complete = True
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        match pending.pop():
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                callables.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                complete = complete and all(alias.name != "*" for alias in aliases)
                others.update(alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case ast.Assign(targets=targets):
                others.update(n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                others.add(name)
            case ast.If() | ast.Try() | ast.With() as block:
                pending.extend(n for n in ast.walk(block) if isinstance(n, ast.stmt) and n is not block)
            case _:
                pass
    return callables, others, complete and "__getattr__" not in callables
