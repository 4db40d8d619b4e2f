"""What the exit codes of the command line mean, and which verb gives which: the one table that help and README show."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """A code that a verb exits with."""

    OK = 0
    MACHINE = 1
    INPUT = 2
    NOTHING_PROVEN = 3
    MODEL = 4
    REGRESSION = 5
    NOT_PRICED = 6
    HANGUP = 129
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done: a winner that is proven (predicted on a simulated device), a proof that held",
    ExitCode.MACHINE: "this machine failed (a full disk, a damaged record)",
    ExitCode.INPUT: "bad input",
    ExitCode.NOTHING_PROVEN: "nothing fits, nothing trained, or nothing was proven",
    ExitCode.MODEL: "the model itself fails",
    ExitCode.REGRESSION: "a night of a sweep is slower or larger than those before it",
    ExitCode.NOT_PRICED: "estimate could not price what was asked",
    ExitCode.HANGUP: "ended by SIGHUP",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C)",
    ExitCode.TERMINATED: "ended by SIGTERM",
}
"""Each code in the words of help and README."""

_ANY = frozenset({
    ExitCode.OK, ExitCode.MACHINE, ExitCode.INPUT, ExitCode.HANGUP, ExitCode.INTERRUPTED, ExitCode.TERMINATED
})  # fmt: skip
_TRAINING = _ANY | {ExitCode.NOTHING_PROVEN, ExitCode.MODEL}

BY_VERB: dict[str, frozenset[ExitCode]] = {
    "run": _TRAINING,
    "resume": _TRAINING,
    "verify": _TRAINING,
    "estimate": _ANY | {ExitCode.MODEL, ExitCode.NOT_PRICED},
    "watch": _ANY,
    "runs": _ANY,
    "report": _ANY,
    "sweep": _TRAINING | {ExitCode.REGRESSION},
    "results": _ANY,
    "export": _ANY | {ExitCode.NOTHING_PROVEN},
    "doctor": _ANY,
    "models": _ANY,
    "spaces": _ANY,
    "schema": _ANY,
    "completion": _ANY,
}
"""The codes that each verb may exit with."""


def summary() -> str:
    """Return the table as one sentence."""
    return "Exit codes: " + "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items()) + "."


_SEVERITY = (
    ExitCode.OK, ExitCode.NOTHING_PROVEN, ExitCode.INPUT, ExitCode.MODEL, ExitCode.MACHINE,
)  # fmt: skip


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the code of a verb that did several things: not proven, bad input, the model, this machine, rising."""
    return max(codes, key=_SEVERITY.index, default=ExitCode.OK)
