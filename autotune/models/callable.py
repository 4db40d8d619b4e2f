"""A model that is given as a function of this process: by which name a worker imports it.

Workers are processes of their own, and nothing is pickled, so a function must be one that an import finds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.errors import InputError

_INSTEAD = "define a function at the top level of a file, and pass that, or 'path/to/file.py:function'"


def importable(function: Callable[..., Any]) -> tuple[str, Path]:
    """Return `module:function`, and the folder in which an import finds the module.

    A function of the script that is running is found by the script's file, which the worker imports: what the script
    does must stand under `if __name__ == "__main__":`. Raises InputError, with the reason and what to do, for what no
    import finds: a lambda, a function inside another, a method, an object, a function of a notebook.
    """
    name, home = getattr(function, "__qualname__", None), getattr(function, "__module__", None)
    if name is None or home is None or isinstance(function, ModuleType):
        raise InputError(f"model: a {type(function).__name__} has no name to be imported by; {_INSTEAD}")
    if "<lambda>" in name:
        raise InputError(f"model: a lambda has no name to be imported by; {_INSTEAD}")
    if "<locals>" in name:
        raise InputError(f"model: {name} is defined inside a function, where no import finds it; {_INSTEAD}")
    if "." in name:
        raise InputError(f"model: {name} belongs to a class; {_INSTEAD}")
    module = sys.modules.get(home)
    if getattr(module, name, None) is not function:
        raise InputError(f"model: {home}.{name} is another object than what was passed; {_INSTEAD}")
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py") or not Path(file).is_file():
        where = "a notebook or prompt" if home == "__main__" else f"module {home}, which has no Python file,"
        raise InputError(f"model: {name} is defined in {where}, which a worker cannot import; {_INSTEAD}")
    path = Path(file).resolve()
    dotted = _module_name(module, path)
    if not all(part.isidentifier() for part in dotted.split(".")):
        raise InputError(f"model: {path} cannot be imported under its name; name it like my_model.py")
    folders = dotted.count(".") + (path.name == "__init__.py")
    return f"{dotted}:{name}", path.parents[folders]


def _module_name(module: ModuleType | None, path: Path) -> str:
    """Return the name to import a module by; of the script that is running, its file's."""
    assert module is not None
    if module.__name__ != "__main__":
        return module.__name__
    spec = getattr(module, "__spec__", None)  # where it was started with `python -m`
    return spec.name if spec is not None else path.stem
