"""From a proven configuration to the files that another library trains from.

One pure function a target: `Best -> {file name: text}`. A target that cannot express a field says so by name;
nothing is dropped silently.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from autotune.errors import InputError, nearest
from autotune.exports.fields import CannotExport
from autotune.run.best import Best

Exporter = Callable[[Best], dict[str, str]]

EXPORTERS: dict[str, str] = {
    "accelerate": "autotune.exports.accelerate:export",
    "transformers": "autotune.exports.transformers:export",
    "native": "autotune.exports.native:export",
}
"""Targets of `autotune export --to`, each `module:function`; imported when asked for."""


def load_exporter(target: str) -> Exporter:
    """Return the function behind a target. Raises InputError for an unknown one."""
    if target not in EXPORTERS:
        raise InputError(f"there is no export to {target!r}; {nearest(target, EXPORTERS)}")
    module, _, function = EXPORTERS[target].partition(":")
    return cast(Exporter, getattr(importlib.import_module(module), function))


def export(best: Best, target: str) -> dict[str, str]:
    """Return the files (name: text) that `target` trains from.

    Raises InputError for an unknown target, and CannotExport, which names every field that the target cannot
    express.
    """
    exporter = load_exporter(target)
    if best.command is not None:
        why = "a command of your own was tuned: start it as `command` in best.yaml says, and nothing has to be exported"
        raise CannotExport(target, {"command": why})
    return exporter(best)


def possible(best: Best) -> list[str]:
    """Return the targets that can express a configuration, autotune's own first."""
    found = []
    for target in reversed(EXPORTERS):
        with suppress(CannotExport):
            export(best, target)
            found.append(target)
    return found
