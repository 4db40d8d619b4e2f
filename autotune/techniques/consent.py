"""What is tried only by consent: the values that change what is learned, as their declarations say. Pure.

`--allow` names them. A search space that lists such a value, and an option that asks for one, are consent too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from autotune.candidate import Candidate
from autotune.errors import SHOWN, InputError, nearest
from autotune.printable import quoted
from autotune.techniques.axis import CHANGES, TrainingChange
from autotune.techniques.families import DECLARED


@dataclass(frozen=True)
class ByConsent:
    """A value of an axis that changes what is learned."""

    name: str
    """What `--allow` calls it: the value, or `axis=value` where another axis has a value of that name."""
    axis: str
    value: Any
    change: TrainingChange

    def of(self, candidate: Candidate) -> bool:
        """Tell whether a candidate has this value."""
        return bool(getattr(candidate, self.axis) == self.value)


def _declared() -> Iterator[ByConsent]:
    shared = Counter(str(value) for axis in DECLARED for value in axis.values)
    for axis in DECLARED:
        for value, declared in axis.values.items():
            if (change := declared.changes_training) is not None:
                name = str(value) if shared[str(value)] == 1 else f"{axis.name}={value}"
                yield ByConsent(name, axis.name, value, change)


BY_CONSENT: tuple[ByConsent, ...] = tuple(sorted(_declared(), key=lambda one: CHANGES.index(one.change.of)))
"""All of them, the smallest change first."""
_CHANGING = frozenset((one.axis, one.value) for one in BY_CONSENT)
NAMES: tuple[str, ...] = tuple(one.name for one in BY_CONSENT)


def changing(candidate: Candidate) -> tuple[ByConsent, ...]:
    """Return by what a candidate's training differs from plain bf16 training; empty where it does not."""
    return tuple(one for one in BY_CONSENT if one.of(candidate))


def leaves_alone(axis: str, value: object) -> bool:
    """Tell whether a value of an axis leaves what is learned alone."""
    return (axis, value) not in _CHANGING


def allowed(names: Iterable[str]) -> tuple[ByConsent, ...]:
    """Return what names stand for, each once and the smallest change first; `AdamW8bit` is `adamw-8bit`.

    Raises InputError with every name that needs no consent or is none, and the nearest that do.
    """
    found, unknown = set(), []
    for name in dict.fromkeys(names):
        if (known := _SPELLED.get(_spelled(name))) is not None:
            found.add(known.name)
        else:
            unknown.append(name)
    if unknown:
        said = [f"--allow: {quoted(name)} is nothing that needs consent" for name in unknown]
        hints = [nearest(name.strip().lower(), NAMES) for name in unknown[:SHOWN]]  # of no more than are told
        raise InputError(
            [f"{line}; {hint}" for line, hint in zip_longest(said, hints, fillvalue="")], about="allow"
        )
    return tuple(one for one in BY_CONSENT if one.name in found)


def _spelled(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


_SPELLED: Mapping[str, ByConsent] = {
    _spelled(text): one for one in BY_CONSENT for text in (one.name, f"{one.axis}={one.value}")
}


def told(changes: Iterable[ByConsent]) -> str:
    """Return in one sentence how what is learned differs; empty where it does not."""
    hows = [one.change.how for one in changes]
    return f"what is learned differs from plain bf16 training: {'; '.join(hows)}" if hows else ""
