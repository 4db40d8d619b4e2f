"""What to do with a winner: the lines that reports end with, commands that can be pasted among them."""

from __future__ import annotations

from autotune.commands import command
from autotune.exports import possible
from autotune.run.best import Best
from autotune.run.paths import RunPaths


def what_next(paths: RunPaths, best: Best) -> list[str]:
    """Return what to do with a winner: commands that can be pasted, each in a line of its own."""
    trusted = () if best.command is None else ("--trust-remote-code",)
    verifying = command("verify", paths.best, *trusted)
    if best.evidence != "measured":
        what = "such a GPU" if best.evidence == "predicted" else "the recorded device"
        verifying = f"and on a machine with {what}, which proves it:\n{verifying}"
    return [
        f"training starts from {paths.best}" + (", as its `command` says" if best.command else ""),
        *(command("export", paths.root, "--to", target) for target in possible(best)),
        *verifying.splitlines(),
        *([command("resume", paths.root, "--retry-lost")] if best.unknown else []),
        command("report", paths.root),
    ]
