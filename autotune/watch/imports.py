"""Wait for a module: a watched program imports torch when it likes, and may never do."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any, Callable  # noqa: UP035 - as Python 3.8 has them


def after_import(name: str, action: Callable[[ModuleType], None]) -> None:
    """Call `action` with a module right after it was imported; at once where it is there."""
    if name in sys.modules:
        action(sys.modules[name])
        return
    finder = _Finder(name, action)
    sys.meta_path.insert(0, finder)


class _Finder(MetaPathFinder):
    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._action = action
        self._busy = False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002
        if fullname != self._name or self._busy:
            return None
        import importlib.util

        self._busy = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy = False
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._action(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
