"""Completion in a shell, by the scripts of the library that the command line is built on."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.errors import InputError, nearest
from autotune.printable import quoted

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_AUTOTUNE_COMPLETE"
"""Environment variable by which such a script asks what may come next."""
_PROGRAM = "autotune"
_SHOWN = 50
"""Runs that are offered, the newest."""


def asked() -> bool:
    """Tell whether it is a shell that asks, and not a person; if so, have the library understand it."""
    if VARIABLE not in os.environ:
        return False
    from typer._completion_classes import completion_init

    completion_init()
    return True


def script(shell: str) -> str:
    """Return the script of a shell. Raises InputError for one that there is none for."""
    from typer._completion_shared import get_completion_script

    if shell not in SHELLS:
        raise InputError(
            f"there is no completion for {quoted(shell)}; {nearest(shell, SHELLS)}", about="shell"
        )
    text: str = get_completion_script(prog_name=_PROGRAM, complete_var=VARIABLE, shell=shell)
    return text


def runs(incomplete: str) -> list[str]:
    """Return the names of runs under `runs/` that begin so, the newest first, and `last`."""
    names = sorted((spec.parent.name for spec in Path("runs").glob("*/spec.yaml")), reverse=True)
    return [name for name in ["last", *names[:_SHOWN]] if name.startswith(incomplete)]
