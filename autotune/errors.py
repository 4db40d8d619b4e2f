"""The exceptions of autotune: each says what happened, when, and what to do next.

Only the command line turns them into exit codes (`exit_code`); everything else raises.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Self, TypeVar, overload

from autotune.exit_codes import ExitCode

_One = TypeVar("_One")
_Other = TypeVar("_Other")
_Third = TypeVar("_Third")

SHOWN = 20
"""Problems that an error tells one by one."""
LONGEST_NAME = 80
"""Characters of a name that is compared with others: longer ones are no misspelling."""
CLOSEST = 3
"""Valid names at most that are suggested for one that is not."""
CAUSES_SHOWN = 12
"""Causes that a message names, at most; the journal and `report --json` hold all."""


class AutotuneError(Exception):
    """Root of all errors that autotune raises on purpose."""

    exit_code = ExitCode.MACHINE


class Problem(str):
    """One mistake of the input: the sentence, which knows what it is about."""

    about: str
    """The option, axis or key, as a spec calls it (`seq_len`, `variables.PATH`); empty where it is no single one."""

    def __new__(cls, sentence: str, about: str = "") -> Self:
        """Keep what a sentence is about already; `about` is for one that does not know."""
        made = super().__new__(cls, sentence)
        made.about = getattr(sentence, "about", "") or about
        return made


class InputError(AutotuneError, ValueError):
    """The user's input cannot be used. Holds every problem found, not just the first."""

    exit_code = ExitCode.INPUT

    def __init__(self, problems: str | Iterable[str], about: str = "") -> None:
        """Take sentences; `about` is what those are about that do not say it themselves."""
        found = (problems,) if isinstance(problems, str) else tuple(problems)
        self.problems = tuple(Problem(problem, about) for problem in found)
        more = len(self.problems) - SHOWN
        told = [*self.problems[:SHOWN], *([f"and {more:,} more problems"] if more > 0 else [])]
        super().__init__("\n".join(told))

    @property
    def about(self) -> tuple[str, ...]:
        """Return the options, axes and keys that the problems are about, each once, as far as they say it."""
        return tuple(dict.fromkeys(problem.about for problem in self.problems if problem.about))


class RunInUse(InputError):
    """Another tuner works on the run: `process` is its number, None where that cannot be told."""

    def __init__(self, message: str, process: int | None) -> None:
        self.process = process
        super().__init__(message)


class RunEdited(InputError):
    """A run is not continued, because what it measured is of another spec, or of another model's code.

    `changed` names the fields of the spec that differ; none where it is the file that defines the model.
    """

    def __init__(self, message: str, changed: Sequence[str] = ()) -> None:
        self.changed = tuple(changed)
        super().__init__(message)


class _NoWinner(AutotuneError):
    """A search ended without anything to prove.

    `headline` says why, `causes` how each rung ended, one line a rung, and `hints` what would fit by consent;
    `would_fit` are the names of that, as `--allow` takes them, the smallest change first.
    """

    exit_code = ExitCode.NOTHING_PROVEN

    def __init__(
        self,
        headline: str,
        causes: Sequence[str] = (),
        hints: Sequence[str] = (),
        would_fit: Sequence[str] = (),
    ) -> None:
        self.headline = headline
        self.causes = tuple(causes)
        self.hints = tuple(hints)
        self.would_fit = tuple(would_fit)
        super().__init__("\n".join((headline, *_first(self.causes, CAUSES_SHOWN), *self.hints)))


class NothingFits(_NoWinner):
    """No candidate of the search space fits the device: all that was launched lacked memory."""


class NothingTrained(_NoWinner):
    """No candidate of the search space trained, and memory alone is not why: a loss that is not finite, a deadline."""


class NothingProven(AutotuneError):
    """Candidates fit, but none passed the proof."""

    exit_code = ExitCode.NOTHING_PROVEN


class ModelError(AutotuneError):
    """The user's model (or a library under it) raised an error that is not about memory."""

    exit_code = ExitCode.MODEL

    def __init__(self, message: str, traceback: str = "") -> None:
        self.traceback = traceback
        super().__init__(message)


class NotPriced(AutotuneError):
    """No candidate that an estimate was asked for could be priced."""

    exit_code = ExitCode.NOT_PRICED


class JournalError(AutotuneError):
    """The record of a run cannot be written, or is damaged in its middle."""

    def __init__(
        self, message: str, kind: Literal["unwritable", "damaged", "out of order"], line: int | None = None
    ) -> None:
        self.kind = kind
        """`damaged` is a line that is none of a journal's; `out of order` one that may not follow those before it."""
        self.line = line
        """The line of the journal, from 1; None where nothing was read."""
        super().__init__(message)


class StoreError(AutotuneError):
    """The store of results cannot be read or written; what was stored before is there."""


class ProbeError(AutotuneError):
    """A probe could not even be launched (this machine's fault, not the candidate's)."""


def _first(lines: Sequence[str], most: int) -> list[str]:
    more = len(lines) - most
    return [*lines[:most], *([f"and {more} more rung{'s' * (more > 1)}"] if more > 0 else [])]


class DiskError(AutotuneError):
    """A disk takes nothing that is written to it: it is full, read-only, or failing."""


_OF_THE_DISK = {
    errno.ENOSPC: "free some of it, or name a place on another disk",
    errno.EDQUOT: "free some of it, or name a place on another disk",
    errno.EROFS: "mount it so that it can be written to, or name a place on another disk",
    errno.EIO: "look at the disk, or name a place on another one",
}
"""What to do where the disk is to blame, and not whoever named a file."""


def unwritable(what: str, error: OSError, about: str = "") -> AutotuneError:
    """Return the error for what cannot be written: `what` says what and why not, to which the system's reason is added.

    It is this machine's fault where a disk is full, read-only or failing, else that of who named the place.
    """
    said = f"{what}: {error.strerror or error}"
    if error.errno in _OF_THE_DISK:
        return DiskError(f"{said}; {_OF_THE_DISK[error.errno]}")
    return InputError(said, about)


@overload
def all_of(one: Callable[[], _One], other: Callable[[], _Other], /) -> tuple[_One, _Other]: ...


@overload
def all_of(
    one: Callable[[], _One], other: Callable[[], _Other], third: Callable[[], _Third], /
) -> tuple[_One, _Other, _Third]: ...


def all_of(*parts: Callable[[], object]) -> tuple[object, ...]:
    """Return what each of some functions gives; raise one InputError with the problems of all that refuse."""
    problems: list[str] = []
    found = []
    for part in parts:
        try:
            found.append(part())
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return tuple(found)


class NoDiskSpace(ProbeError):
    """A disk is full, or has no room for what is about to be written: nothing follows for any candidate."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a hint that names the valid spellings closest to `name`: "did you mean a, b?".

    Falls back to the whole list when nothing is close and the list is short.
    """
    names = sorted(set(valid))
    close = difflib.get_close_matches(name, names, n=CLOSEST, cutoff=0.6) if len(name) <= LONGEST_NAME else []
    if close:
        return f"did you mean {', '.join(close)}?"
    if len(names) <= 12:
        return f"valid: {', '.join(names)}"
    return f"valid are {len(names)} names, such as {', '.join(names[:5])}"
