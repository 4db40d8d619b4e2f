"""From a proven configuration to the files that another library trains from.

One pure function a target: `Best -> {file name: text}`. A target that cannot express a field says so by name;
nothing is dropped silently. A target that would run something else than was measured, and says what (`differences`),
exports with these sentences, in a file of their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import cast

from autotune.errors import InputError, nearest
from autotune.exports.fields import CannotExport
from autotune.run.best import Best

Exporter = Callable[[Best], dict[str, str]]

EXPORTERS: dict[str, str] = {
    "torchtitan": "autotune.exports.torchtitan:export",
    "litgpt": "autotune.exports.litgpt:export",
    "axolotl": "autotune.exports.axolotl:export",
    "llamafactory": "autotune.exports.llamafactory:export",
    "deepspeed": "autotune.exports.deepspeed:export",
    "lightning": "autotune.exports.lightning:export",
    "trl": "autotune.exports.trl:export",
    "accelerate": "autotune.exports.accelerate:export",
    "transformers": "autotune.exports.transformers:export",
    "native": "autotune.exports.native:export",
}
"""Targets of `autotune export --to`, each `module:function`; imported when asked for."""

NOT_PROVEN = "NOT_PROVEN.txt"
"""The file that says by what a target's training differs from the one that was measured."""


def load_exporter(target: str) -> Exporter:
    """Return the function behind a target. Raises InputError for an unknown one."""
    _, _, function = _place(target).partition(":")
    return cast(Exporter, getattr(_module(target), function))


def export(best: Best, target: str) -> dict[str, str]:
    """Return the files (name: text) that `target` trains from.

    Raises InputError for an unknown target, and CannotExport, which names every field that the target cannot
    express.
    """
    exporter = load_exporter(target)
    if best.command is not None:
        why = "a command of your own was tuned: start it as `command` in best.yaml says, and nothing has to be exported"
        raise CannotExport(target, {"command": why})
    files = exporter(best)
    if sentences := not_proven(best, target):
        files[NOT_PROVEN] = "".join(f"{sentence}\n" for sentence in sentences)
    return files


def not_proven(best: Best, target: str) -> tuple[str, ...]:
    """Return by what a target's training differs from the one that was measured; empty where it is that one.

    Raises InputError for an unknown target.
    """
    differences = getattr(_module(target), "differences", None)
    return () if differences is None else tuple(f"not proven there: {how}" for how in differences(best))


def possible(best: Best) -> list[str]:
    """Return the targets that train a configuration as it was proven, autotune's own first."""
    found = []
    for target in reversed(EXPORTERS):
        with suppress(CannotExport):
            export(best, target)
            if not not_proven(best, target):
                found.append(target)
    return found


def require_target(target: str) -> None:
    """Raise InputError where there is no export of this name."""
    if target not in EXPORTERS:
        raise InputError(f"--to: there is no export to {target!r}; {nearest(target, EXPORTERS)}", about="to")


def _place(target: str) -> str:
    require_target(target)
    return EXPORTERS[target]


def _module(target: str) -> ModuleType:
    return importlib.import_module(_place(target).partition(":")[0])
