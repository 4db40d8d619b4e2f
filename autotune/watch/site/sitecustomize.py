"""Python imports a module of this name at its start: it starts the watcher, then what it hides (another of its name).

Its folder is first on PYTHONPATH in a probe, and in nothing else. It costs nothing before the program imports torch,
and whatever fails here is the probe's trouble and never the program's.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load(name: str) -> None:
    """Import a file of autotune.watch where the program has no autotune, under the name by which others find it."""
    path = os.path.join(os.path.dirname(_HERE), f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"autotune.watch.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def _start_hidden() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    others = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("AUTOTUNE_WATCH"):
    try:
        for _name in ("files", "imports", "memory", "stopping", "tensors", "failures", "watcher"):
            _load(_name)
        sys.modules["autotune.watch.watcher"].install()
    except Exception as error:  # noqa: BLE001
        sys.stderr.write(f"autotune: this process is not watched: {error!r}\n")
_start_hidden()
